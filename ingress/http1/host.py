"""The state that the connections of one listener share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ingress.http1.exchange import Answer, Application

# Called for a request that never reached the application, with the client's address and the status.
OnRefused = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long a client may keep its connection waiting, in seconds.

    `silence_s`: until the head of its next request is there. Longer than the 60 s for which nginx
    and cloud load balancers keep an idle connection, or they would send requests into connections
    that this end is closing. `unread_s`: while it takes in nothing of an answer. `stall_s`: the
    same for an answer in pieces, whose handler is held up meanwhile.
    """

    silence_s: float = 65.0
    unread_s: float = 60.0
    stall_s: float = 10.0


USUAL_TIMEOUTS = ClientTimeouts()


class OpenConnection(Protocol):
    """A connection, as its host sees it."""

    def close_if_idle(self) -> None: ...


class HttpHost:
    """Holds the application, the timeouts and the open connections of one listener.

    `unknown_method` makes the answer to a request whose method HTTP does not know.
    """

    def __init__(
        self,
        app: Application,
        on_refused: OnRefused,
        unknown_method: Callable[[], Answer],
        *,
        scheme: str,
        timeouts: ClientTimeouts,
    ) -> None:
        self.app = app
        self.on_refused = on_refused
        self.unknown_method = unknown_method
        self.scheme = scheme
        self.timeouts = timeouts
        self.is_draining = False
        self.connections: set[OpenConnection] = set()
        # asyncio alone does not keep its tasks from being collected as garbage.
        self.tasks: set[asyncio.Task[None] | None] = set()
        self._closed = asyncio.Event()

    def drain(self) -> None:
        """Closes connections without a request now, and the others with their last answer."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.close_if_idle()
        self._check_closed()

    async def wait_closed(self) -> None:
        """Waits, after `drain`, until all connections are closed."""
        await self._closed.wait()

    def forget(self, connection: OpenConnection) -> None:
        """Removes a connection that has been closed."""
        self.connections.discard(connection)
        self._check_closed()

    def _check_closed(self) -> None:
        if self.is_draining and not self.connections:
            self._closed.set()
