"""One HTTP request and the one answer to it, as an application sees them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

Header = tuple[str, str]


class Answer(NamedTuple):
    """One HTTP answer without its `connection` header."""

    status: int
    headers: list[Header]
    body: bytes


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
    def say_continue(self) -> None: ...
    def answer(
        self, exchange: "Exchange", status: int, headers: Sequence[Header], body: bytes
    ) -> None: ...
    def stream(self, exchange: "Exchange", status: int, headers: Sequence[Header]) -> None: ...
    async def write_piece(self, exchange: "Exchange", piece: bytes) -> None: ...
    def end_stream(self, exchange: "Exchange") -> None: ...


class Exchange:
    """A request that can be answered once. Lives on its connection's event loop.

    `path` is percent-decoded, `query` is not. `headers` are in order, with names in lower case;
    those whose values are not UTF-8 are left out. `keeps_alive`: whether another request may follow
    on the connection. `status` is 0 until there is an answer. `added_headers` go with it, with
    names in lower case.
    """

    __slots__ = (
        "_arrival",
        "_chunks",
        "_connection",
        "_is_broken",
        "_is_wanted",
        "_kept_bytes",
        "_left",
        "_takes_all",
        "added_headers",
        "headers",
        "http_version",
        "is_received",
        "keeps_alive",
        "method",
        "path",
        "query",
        "status",
    )

    def __init__(
        self,
        connection: Connection,
        *,
        method: str,
        path: str,
        query: str,
        http_version: str,
        headers: Sequence[Header],
        keeps_alive: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.http_version = http_version
        self.headers = headers
        self.keeps_alive = keeps_alive
        self.status = 0
        self.added_headers: Sequence[Header] = ()
        self.is_received = False
        self._connection = connection
        self._chunks: list[bytes] = []
        self._kept_bytes = 0
        self._takes_all = False
        self._is_broken = False
        self._is_wanted = False
        self._arrival: asyncio.Future[None] | None = None  # of the next part
        self._left: asyncio.Future[None] | None = None

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

    async def read(self) -> bytes:
        """Returns the whole body, however large: the caller has looked at its announced length.

        Raises:
            ConnectionEnded: the body is not whole.
        """
        self._takes_all = True
        while not self.is_received:
            await self._more()
        return self.received()

    def received(self) -> bytes:
        """Returns the whole body, once `is_received`."""
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def pieces(self) -> AsyncIterator[bytes]:
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

    async def client_left(self) -> None:
        """Returns when the client no longer waits for the answer."""
        if self._left is None:
            self._left = asyncio.get_running_loop().create_future()
            if self._is_broken:
                self._left.set_result(None)
        await asyncio.shield(self._left)

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Sends the answer, with the server's own headers. The status is from 200 to 999."""
        self._connection.answer(self, status, headers, body)
        self.status = status

    def respond_in_pieces(self, status: int, headers: Sequence[Header]) -> None:
        """Sends the answer's head. Only for HTTP/1.1. Without `end` the answer is broken off."""
        self._connection.stream(self, status, headers)
        self.status = status

    async def send(self, piece: bytes) -> None:
        """Sends a piece of the answer; returns when the client is not far behind.

        Raises:
            ConnectionEnded: the client has gone, or has read nothing for too long.
        """
        await self._connection.write_piece(self, piece)

    def end(self) -> None:
        """Tells the client that it has all pieces."""
        self._connection.end_stream(self)

    # --- the connection's side

    def feed(self, chunk: bytes) -> None:
        """Adds a part of the body."""
        if self.status:
            return  # answered without it
        self._chunks.append(chunk)
        self._kept_bytes += len(chunk)
        if self._kept_bytes > AHEAD_BYTES and not self._takes_all:
            self._connection.take_no_more()
        self._wake()

    def receive(self) -> None:
        """Notes that the body is whole."""
        self.is_received = True
        self._wake()

    def break_off(self) -> None:
        """Tells the application that nothing more will come."""
        self._is_broken = True
        self._wake()
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    async def _more(self) -> None:
        if self._is_broken:
            raise ConnectionEnded
        if not self._is_wanted:
            self._is_wanted = True
            if self._waits_to_continue():
                self._connection.say_continue()
        self._connection.take_more()
        self._arrival = asyncio.get_running_loop().create_future()
        await self._arrival

    def _waits_to_continue(self) -> bool:
        # A client of HTTP/1.0 would take "100 Continue" for the answer (RFC 9110, 10.1.1).
        return self.http_version >= "1.1" and any(
            name == "expect" and value.lower() == "100-continue" for name, value in self.headers
        )

    def _wake(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.done():
            arrival.set_result(None)


Application = Callable[[Exchange], Awaitable[None]]
