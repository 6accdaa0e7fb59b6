"""The state that the connections of one listener share."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ingress.http1.exchange import Answer, Application

# Told of what never reached the application: the client's address, and the status it was answered.
OnRefused = Callable[[str, int], None]


class OpenConnection(Protocol):
    """A connection, as far as its host deals with it."""

    def close_if_idle(self) -> None: ...


class HttpHost:
    """Holds what the connections of one listener share: the application, the limits, themselves.

    `unknown_method` makes the answer to a request whose method HTTP does not know.
    """

    def __init__(
        self,
        app: Application,
        on_refused: OnRefused,
        unknown_method: Callable[[], Answer],
        *,
        scheme: str,
        silence_timeout_s: float,
    ) -> None:
        self.app = app
        self.on_refused = on_refused
        self.unknown_method = unknown_method
        self.scheme = scheme
        self.silence_timeout_s = silence_timeout_s
        self.is_draining = False
        self.connections: set[OpenConnection] = set()
        # asyncio itself does not keep tasks from being collected as garbage.
        self.tasks: set[asyncio.Task[None] | None] = set()
        self._closed = asyncio.Event()

    def drain(self) -> None:
        """Connections without a request are closed, the others with their last answer."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.close_if_idle()
        self._check_closed()

    async def wait_closed(self) -> None:
        """After `drain`: all requests have been answered and all connections closed."""
        await self._closed.wait()

    def forget(self, connection: OpenConnection) -> None:
        """This connection is closed."""
        self.connections.discard(connection)
        self._check_closed()

    def _check_closed(self) -> None:
        if self.is_draining and not self.connections:
            self._closed.set()
