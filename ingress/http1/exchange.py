"""One HTTP request and the one answer to it, as an application sees them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from ingress.http1.whole_body import WholeBody

Header = tuple[str, str]
Content = bytes | bytearray
Body = bytes | memoryview


class Answer(NamedTuple):
    """One HTTP answer without its `connection` header."""

    status: int
    headers: list[Header]
    body: Body


# So much of a body is kept for an application that reads it in pieces; then its client waits.
AHEAD_BYTES = 256 * 1024


class ConnectionEnded(Exception):
    """The client left, or sent what is not HTTP, before its request or answer was whole."""


class Connection(Protocol):
    """The connection of an exchange, as its requests see it."""

    client: str
    server: str

    @property
    def scheme(self) -> str: ...
    def take_more(self) -> None: ...
    def take_no_more(self) -> None: ...
    def read_into(self, body: WholeBody) -> None: ...
    def say_continue(self) -> None: ...
    def answer(
        self, exchange: "Exchange", status: int, headers: Sequence[Header], body: Body
    ) -> None: ...
    def stream(self, exchange: "Exchange", status: int, headers: Sequence[Header]) -> None: ...
    async def write_piece(self, exchange: "Exchange", piece: bytes) -> None: ...
    def end_stream(self, exchange: "Exchange") -> None: ...
    def cut_off(self, exchange: "Exchange") -> None: ...


class Exchange:
    """A request that can be answered once. Lives on its connection's event loop.

    `path` is percent-decoded, `query` is not. `headers` are in order, as the client spelled
    their names; those whose values are not UTF-8 are left out. `fields` has the last one of each
    name, in lower case. Both belong to the application. `keeps_alive`: whether another request may
    follow on the connection. `started_s` is `time.perf_counter` of the head's end. `status` is 0
    until there is an answer.
    `on_left` is called when the client no longer waits for it.
    """

    # What most exchanges never need is the class's until they do.
    status = 0
    is_begun = is_received = is_broken = is_late = is_ended = False
    on_left: Callable[[], object] | None = None
    _wants_whole = _has_asked = False
    _kept_bytes = 0
    _then: Callable[[], object] | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        connection: Connection,
        *,
        method: str,
        path: str,
        query: str,
        http_version: str,
        headers: list[Header],
        fields: dict[str, str],
        keeps_alive: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.http_version = http_version
        self.headers = headers
        self.fields = fields
        self.keeps_alive = keeps_alive
        self.started_s = time.perf_counter()
        self._connection = connection
        self._chunks: list[Content] = []

    @property
    def client(self) -> str:
        """Returns the client's address and port."""
        return self._connection.client

    @property
    def server(self) -> str:
        """Returns the address and port that the client connected to."""
        return self._connection.server

    @property
    def scheme(self) -> str:
        """Returns http or https."""
        return self._connection.scheme

    # --- the application's side

    def when_received(
        self, then: Callable[[], object], length_bytes: int, timeout_s: float
    ) -> None:
        """Calls `then` when the body `is_received`, or will not be: `is_broken` or `is_late`.

        Args:
            then: may call `received`.
            length_bytes: as announced, and found to be acceptable.
            timeout_s: how long the rest of the body may take.
        """
        if self.is_received or self.is_broken:
            then()
            return
        self._then, self._wants_whole = then, True
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._be_late)
        self._connection.read_into(WholeBody(length_bytes, self._chunks))
        self._connection.take_more()

    def received(self) -> Content:
        """Returns the whole body, once `is_received`; only once."""
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def pieces(self) -> AsyncIterator[Content]:
        """Yields the body as it arrives; holds the client up while no piece is taken.

        Raises:
            ConnectionEnded: the body is not whole.
        """
        while True:
            chunks, self._chunks, self._kept_bytes = self._chunks, [], 0
            for chunk in chunks:
                yield chunk
            if not self._chunks:
                if self.is_received:
                    return
                await self._more()

    def respond(self, status: int, headers: Sequence[Header], body: Body) -> None:
        """Sends the answer, with the server's own headers. The status is from 200 to 999."""
        if not self.is_ended:  # by a drain that did not wait for its body, say
            self._connection.answer(self, status, headers, body)

    def respond_in_pieces(self, status: int, headers: Sequence[Header]) -> None:
        """Sends the answer's head. Only for HTTP/1.1. Then comes `end`, or `cut_off`."""
        self._connection.stream(self, status, headers)

    async def send(self, piece: bytes) -> None:
        """Sends a piece of the answer; returns when the client is not far behind.

        Raises:
            ConnectionEnded: the client has gone, or has read nothing for too long.
        """
        await self._connection.write_piece(self, piece)

    def end(self) -> None:
        """Tells the client that it has all pieces."""
        self._connection.end_stream(self)

    def cut_off(self) -> None:
        """Closes the connection, so that the client sees that pieces are missing."""
        self._connection.cut_off(self)

    # --- the connection's side

    def feed(self, chunk: bytes) -> None:
        """Adds a part of the body."""
        if self.status:
            return  # answered without it
        self._chunks.append(chunk)
        if self.is_begun and not self._wants_whole:
            self._kept_bytes += len(chunk)
            if self._kept_bytes > AHEAD_BYTES:
                self._connection.take_no_more()
            self._wake()

    def receive(self, whole: bytearray | None = None) -> None:
        """Notes that the body is whole, and is this one unless it was fed."""
        if whole is not None:
            self._chunks = [whole]
        self.is_received = True
        if self.is_begun:
            self._wake()

    def break_off(self) -> None:
        """Tells the application that nothing more will come."""
        self.is_broken = True
        self._wake()

    def leave(self) -> None:
        """Tells the application that the client no longer waits."""
        on_left, self.on_left = self.on_left, None
        if on_left is not None:
            on_left()

    def _be_late(self) -> None:
        self.is_late = True
        self._wake()

    async def _more(self) -> None:
        if self.is_broken:
            raise ConnectionEnded
        if not self._has_asked:
            self._has_asked = True
            if self._waits_to_continue():
                self._connection.say_continue()
        self._connection.take_more()
        arrival = asyncio.Event()
        self._then = arrival.set
        await arrival.wait()

    def _waits_to_continue(self) -> bool:
        # A client of HTTP/1.0 would take "100 Continue" for the answer (RFC 9110, 10.1.1).
        return self.http_version >= "1.1" and any(
            name.lower() == "expect" and value.lower() == "100-continue"
            for name, value in self.headers
        )

    def _wake(self) -> None:
        then, self._then = self._then, None
        if self._timer is not None:
            self._timer.cancel()
        if then is not None:
            then()


# Answers before it returns, or later, by a call; or returns what is to be awaited for that.
Application = Callable[[Exchange], Coroutine[Any, Any, None] | None]
