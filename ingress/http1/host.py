"""The state that the connections of one listener share."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from batching.settings.settings import Settings
from ingress.http1.exchange import Answer, Application, Exchange, Header

log = logging.getLogger(__name__)

# What is read at once. The rest of a body that has more goes to a place of its own.
_READ_BYTES = 16 * 1024


class OpenConnection(Protocol):
    """A connection, as its host sees it."""

    def close_if_idle(self) -> None: ...
    def send(self) -> None: ...
    def refuse_incomplete(self, answer: Answer) -> None: ...


class Observer(Protocol):
    """Sees the answers of a listener."""

    def on_answered(self, exchange: Exchange) -> None:
        """Notes an answer, which has been sent or whose client has left."""

    def on_refused(self, client: str, status: int) -> None:
        """Notes the answer to bytes that are no request, or too many; `client` is its address."""


class HttpHost:
    """Holds the application, the limits and the open connections of one listener.

    `unknown_method` makes the answer to a request whose method HTTP does not know, `unclear_host`
    to one that does not name one host. `added_headers`, with names in lower case, go with every
    answer.
    """

    def __init__(
        self,
        app: Application,
        observer: Observer,
        unknown_method: Callable[[], Answer],
        unclear_host: Callable[[], Answer],
        *,
        scheme: str,
        settings: Settings,
        added_headers: Sequence[Header],
    ) -> None:
        self._app = app
        self.on_answered = observer.on_answered
        self.on_refused = observer.on_refused
        self.added_headers = tuple(added_headers)
        # Shared, as what one connection reads is taken before another one reads.
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.unknown_method = unknown_method
        self._unclear_host = unclear_host
        self.scheme = scheme
        self.settings = settings
        self.is_draining = False
        self.connections: set[OpenConnection] = set()
        # asyncio alone does not keep its tasks from being collected as garbage.
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._senders: list[OpenConnection] = []

    def serve(self, exchange: Exchange) -> None:
        """Has the application answer this request, now or later."""
        # RFC 9112, 3.2: with two hosts, a proxy may have gone by the other one.
        if not _names_one_host(exchange):
            exchange.respond(*self._unclear_host())
            return
        try:
            going = self._app(exchange)
        except Exception:  # the outermost frame
            log.exception("request failed")
            _give_up(exchange)
        else:
            if going is not None:
                task = self._loop.create_task(_finish(exchange, going))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def send_soon(self, connection: OpenConnection) -> None:
        """Has the connection `send` after everything that is ready to run by now."""
        if not self._senders:
            self._loop.call_soon(self._send)
        self._senders.append(connection)

    def drain(self) -> None:
        """Closes connections without a request now, and the others with their last answer."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.close_if_idle()
        self._check_closed()

    def refuse_incomplete(self, answer: Answer) -> None:
        """Answers the requests whose bodies have not come whole."""
        for connection in list(self.connections):
            connection.refuse_incomplete(answer)

    async def wait_closed(self) -> None:
        """Waits, after `drain`, until all connections are closed."""
        await self._closed.wait()

    def forget(self, connection: OpenConnection) -> None:
        """Removes a connection that has been closed."""
        self.connections.discard(connection)
        self._check_closed()

    def _send(self) -> None:
        senders, self._senders = self._senders, []
        for connection in senders:
            connection.send()

    def _check_closed(self) -> None:
        if self.is_draining and not self.connections:
            self._closed.set()


def _names_one_host(exchange: Exchange) -> bool:
    if "host" not in exchange.fields:
        return exchange.http_version < "1.1"
    # Mostly no header comes twice, which costs less to see.
    names = exchange.headers
    if len(exchange.fields) == len(names):
        return True
    return [name.lower() for name, _ in names].count("host") == 1


async def _finish(exchange: Exchange, going: Coroutine[Any, Any, None]) -> None:
    try:
        await going
    except Exception:  # the outermost frame
        log.exception("request failed")
    finally:
        _give_up(exchange)


def _give_up(exchange: Exchange) -> None:
    """Ends a request whose answer the application has not finished."""
    if exchange.status == 0:
        exchange.respond(HTTPStatus.INTERNAL_SERVER_ERROR, [], b"")
    elif not exchange.is_ended:
        exchange.cut_off()
