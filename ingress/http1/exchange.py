"""One HTTP request and the one answer to it, as an application sees them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batching.errors import BadRequest, PayloadTooLarge, RequestTimeout, ServeError

Header = tuple[str, str]
Content = bytes | bytearray
Body = bytes | memoryview

# So much of a body is kept for an application that reads it in pieces; then its client waits.
AHEAD_BYTES = 256 * 1024

# Each chunk wakes the event loop (60 us): a body of one-byte chunks would keep it busy for minutes.
MAX_CHUNKS = 16_384
# Where `max_request_size` makes that more.
LEAST_CHUNK_BYTES = 256

# At most so much of a refused body is read, with no longer pauses.
_DISCARD_BYTES = 64 * 1024 * 1024
_DISCARD_PAUSE_S = 0.25


class Answer(NamedTuple):
    """One HTTP answer without its `connection` header."""

    status: int
    headers: list[Header]
    body: Body


class ConnectionEnded(Exception):
    """The client left, or sent what is not HTTP, before its request or answer was whole."""


class UnsupportedEncoding(ServeError):
    """The body is compressed; 10 MB of gzip can be 10 GB of zeros."""

    status = 415
    type = "UnsupportedMediaTypeException"
    reason = "unsupported_encoding"


@dataclass(eq=False)
class Exchange:
    """A request that can be answered once. Lives on its connection's event loop.

    `headers` and `fields` belong to the application. `started_s` is `time.perf_counter` of the
    head's end. `on_left` is called when the client no longer waits for its answer.
    """

    connection: Any  # an HttpConnection, whose file imports this one
    method: str
    path: str  # percent-decoded
    query: str  # as it came
    http_version: str
    headers: list[Header]  # in order, as the client spelled their names; those that are UTF-8
    fields: dict[str, str]  # the last one of each name, in lower case
    keeps_alive: bool  # another request may follow on the connection
    started_s: float = field(default_factory=time.perf_counter, init=False)
    on_left: Callable[[], object] | None = field(default=None, init=False)
    _then: Callable[[], object] | None = field(default=None, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _chunks: list[Content] = field(default_factory=list, init=False)

    # What most exchanges never need is the class's until they do. 0: there is no answer yet.
    status = 0
    is_served = is_received = is_broken = is_late = is_ended = False
    _wants_whole = _has_asked = False
    _kept_bytes = 0

    # --- the application's side: the body

    def when_received(self, then: Callable[[], object], limit_bytes: int, timeout_s: float) -> bool:
        """Calls `then`, which calls `received`, once the body is whole or will not be.

        Returns false instead for a body that is for `read_body`: too large, encoded, in chunks, or
        one that its client sends only when it is told to.
        """
        fields = self.fields
        if "transfer-encoding" in fields or "content-encoding" in fields or "expect" in fields:
            return False
        length_bytes = _number(fields.get("content-length", "0"))
        if length_bytes > limit_bytes:
            return False
        if self.is_received or self.is_broken:
            then()
            return True
        self._then, self._wants_whole = then, True
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._end_in_time)
        self.connection.read_into_place(length_bytes, self._chunks)
        self.connection.take_more()
        return True

    def received(self) -> Content:
        """Returns the whole body; only once.

        Raises:
            BadRequest: the connection ended first.
            RequestTimeout: it did not arrive in time.
        """
        if not self.is_received:
            raise self._why_incomplete()
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def read_body(self, limit_bytes: int, timeout_s: float) -> Content:
        """Returns the whole body, or refuses one that is over the limit and keeps nothing of it.

        Raises:
            UnsupportedEncoding: the body is compressed.
            PayloadTooLarge: it has more than `limit_bytes`, announced or found while reading.
            BadRequest: the connection ended first, or it came in absurdly many or broken chunks.
            RequestTimeout: it did not arrive within `timeout_s`.
        """
        fields = self.fields
        refuse_encoded(fields.get("content-encoding", ""))
        if "transfer-encoding" in fields:
            # All lines together are one list.
            lines = [value for name, value in self.headers if name.lower() == "transfer-encoding"]
            if [line.strip().lower() for line in lines] != ["chunked"]:
                raise BadRequest("The only transfer encoding is chunked.")
        elif "content-length" not in fields:
            return b""
        is_too_large = _number(fields.get("content-length", "0")) > limit_bytes
        if is_too_large and "expect" in fields:  # its client has sent nothing yet
            raise PayloadTooLarge("")
        return await self._gathered(limit_bytes, timeout_s, is_too_large=is_too_large)

    async def _gathered(self, limit_bytes: int, timeout_s: float, *, is_too_large: bool) -> bytes:
        """Returns a body whose length is not known, or known to be too large.

        A body over the limit is read on for a while, but not kept, as a reset might keep the client
        from seeing why it was refused. A client that pauses probably waits for the answer.
        """
        most_chunks = max(MAX_CHUNKS, limit_bytes // LEAST_CHUNK_BYTES)
        kept: list[Content] = []
        count = size_bytes = 0
        now = asyncio.get_running_loop().time
        end_s = now() + timeout_s
        first_end_s = now() + _DISCARD_PAUSE_S if is_too_large else end_s
        try:
            async with asyncio.timeout_at(first_end_s) as timer:
                async for chunk in self.pieces():
                    count += 1
                    size_bytes += len(chunk)
                    kept.append(chunk)
                    if is_too_large := is_too_large or size_bytes > limit_bytes:
                        kept.clear()
                        timer.reschedule(min(end_s, now() + _DISCARD_PAUSE_S))
                    if count > most_chunks or size_bytes > _DISCARD_BYTES + limit_bytes:
                        break
        except (TimeoutError, ConnectionEnded) as error:
            if not is_too_large:
                self.is_late = isinstance(error, TimeoutError)
                raise self._why_incomplete() from error
        if is_too_large:
            raise PayloadTooLarge("")
        if count > most_chunks:
            raise BadRequest(
                f"The request body comes in more than {most_chunks} chunks: send larger ones, or "
                "raise max_request_size."
            )
        return b"".join(kept)

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

    # --- the application's side: the answer

    def respond(self, status: int, headers: Sequence[Header], body: Body) -> None:
        """Sends the answer, with the server's own headers. The status is from 200 to 999."""
        if not self.is_ended:  # by a drain that did not wait for its body, say
            self.connection.answer(self, status, headers, body)

    def respond_in_pieces(self, status: int, headers: Sequence[Header]) -> None:
        """Sends the answer's head. Only for HTTP/1.1. Then comes `end`, or `cut_off`."""
        self.connection.stream(self, status, headers)

    async def send(self, piece: bytes) -> None:
        """Sends a piece of the answer; returns when the client is not far behind.

        Raises:
            ConnectionEnded: the client has gone, or has read nothing for too long.
        """
        await self.connection.write_piece(self, piece)

    def end(self) -> None:
        """Tells the client that it has all pieces."""
        self.connection.end_stream(self, is_whole=True)

    def cut_off(self) -> None:
        """Closes the connection, so that the client sees that pieces are missing."""
        self.connection.end_stream(self, is_whole=False)

    # --- the connection's side

    def feed(self, chunk: bytes) -> None:
        if self.status:
            return  # answered without it
        self._chunks.append(chunk)
        if self.is_served and not self._wants_whole:
            self._kept_bytes += len(chunk)
            if self._kept_bytes > AHEAD_BYTES:
                self.connection.take_no_more()
            self._wake()

    def receive(self, whole: bytearray | None = None) -> None:
        """Notes that the body is whole, and is this one unless it was fed."""
        if whole is not None:
            self._chunks = [whole]
        self.is_received = True
        if self.is_served:
            self._wake()

    def break_off(self) -> None:
        self.is_broken = True
        self._wake()

    def leave(self) -> None:
        on_left, self.on_left = self.on_left, None
        if on_left is not None:
            on_left()

    def _end_in_time(self) -> None:
        self.is_late = True
        self._wake()

    def _why_incomplete(self) -> ServeError:
        if self.is_late:
            return RequestTimeout("The request body did not arrive in time; raise body_timeout.")
        return BadRequest("The request body is incomplete.")

    async def _more(self) -> None:
        if self.is_broken:
            raise ConnectionEnded
        if not self._has_asked:
            self._has_asked = True
            # A client of HTTP/1.0 would take "100 Continue" for the answer (RFC 9110, 10.1.1).
            if self.http_version >= "1.1" and any(
                name.lower() == "expect" and value.lower() == "100-continue"
                for name, value in self.headers
            ):
                self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.connection.take_more()
        arrival = asyncio.Event()
        self._then = arrival.set
        await arrival.wait()

    def _wake(self) -> None:
        then, self._then = self._then, None
        if self._timer is not None:
            self._timer.cancel()
        if then is not None:
            then()


# Answers before it returns, or later, by a call; or returns what is to be awaited for that.
Application = Callable[[Exchange], Coroutine[Any, Any, None] | None]


def refuse_encoded(content_encoding: str) -> None:
    if content_encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedEncoding("Bodies are taken as they are: send no Content-Encoding.")


def _number(length: str) -> int:
    # The parser refuses a length that is no number, and stops at the announced one. Thousands of
    # zeros before it would be too many digits for int().
    return int(length.lstrip("0") or "0")
