"""One HTTP request and the one answer to it, as an application sees them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batching.errors import BadRequest, PayloadTooLarge, RequestTimeout, ServeError

Header = tuple[str, str]
Content = bytes | bytearray
# Makes the place for a body of this size, unless there is none.
MakeRoom = Callable[[int], memoryview | None]
Body = bytes | memoryview

# This much of a body is kept before the application asks for it; then its client has to wait.
AHEAD_BYTES = 256 * 1024

# A refused body is read up to this size, as long as its client's pauses are shorter than this.
_DISCARD_BYTES = 64 * 1024 * 1024
_DISCARD_PAUSE_S = 0.25


class HttpAnswer(NamedTuple):
    """One HTTP answer without its `connection` header."""

    status: int
    headers: list[Header]
    body: Body


class ConnectionEnded(Exception):
    """Says that the client left, or sent no HTTP, before its request or answer was whole."""


class UnsupportedEncoding(
    ServeError, status=415, type="UnsupportedMediaTypeException", reason="unsupported_encoding"
):
    """Refuses a compressed body; 10 MB of gzip can be 10 GB of zeros."""


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
    _refusal: ServeError | None = field(default=None, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _chunks: list[Content | memoryview] = field(default_factory=list, init=False)

    # What most exchanges never need is the class's until they do. 0: there is no answer yet.
    status = 0
    is_served = is_received = is_broken = is_late = is_ended = False
    _size_bytes = _limit_bytes = 0
    _ends_s = 0.0

    # --- the application's side: the body

    def when_received(
        self,
        then: Callable[[], object],
        limit_bytes: int,
        timeout_s: float,
        make_room: MakeRoom | None = None,
    ) -> None:
        """Calls `then`, which calls `received`, once the body is whole or refused; maybe at once.

        A body over the limit is read on for a while, but not kept, as a reset might keep its client
        from seeing why it was refused. A client that pauses probably waits for the answer.
        """
        fields, self._then, self._limit_bytes = self.fields, then, limit_bytes
        if "transfer-encoding" in fields or "content-encoding" in fields:
            self._refusal = self._why_encoded()
        # The parser refuses a length that is no number, and stops at the announced one. Thousands
        # of zeros before it would be too many digits for int().
        length_bytes = int(fields.get("content-length", "").lstrip("0") or "0")
        is_unwanted = self._refusal is not None
        if max(length_bytes, self._size_bytes) > limit_bytes:
            self._refusal = self._refusal or PayloadTooLarge("")
            is_unwanted = is_unwanted or "expect" in fields  # its client has sent nothing yet
        if self.is_received or self.is_broken or is_unwanted:
            self._wake()
            return
        loop = asyncio.get_running_loop()
        self._ends_s = loop.time() + timeout_s
        self._timer = loop.call_at(self._ends_s, self._end_in_time)
        # A client of HTTP/1.0 would take "100 Continue" for the answer (RFC 9110, 10.1.1).
        if self.http_version >= "1.1" and fields.get("expect", "").lower() == "100-continue":
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._refusal is not None:
            self._discard()
        elif "content-length" in fields:
            self.connection.read_into_place(length_bytes, self._chunks, make_room)
        self.connection.take_more()

    def received(self) -> Content | memoryview:
        """Returns the whole body, maybe in the room that was made for it; only once.

        Raises:
            UnsupportedEncoding: the body is compressed.
            PayloadTooLarge: it has more than the limit, announced or found while reading.
            BadRequest: the connection ended first, or the body is broken.
            RequestTimeout: it did not arrive in time.
        """
        if self._refusal is not None:
            raise self._refusal
        if self.is_late:
            raise RequestTimeout("The request body did not arrive in time; raise body_timeout.")
        if not self.is_received:
            raise BadRequest("The request body is incomplete.")
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def read_body(self, limit_bytes: int, timeout_s: float) -> Content:
        """Waits for the whole body, and returns it as `received` does."""
        is_over = asyncio.Event()
        self.when_received(is_over.set, limit_bytes, timeout_s)
        await is_over.wait()
        return self.received()  # type: ignore[return-value]  # no room was made

    # --- the application's side: the answer

    def respond(self, status: int, headers: Sequence[Header], body: Body) -> None:
        """Sends the answer, with the server's own headers. The status is from 200 to 999."""
        if not self.is_ended:  # by a drain that did not wait for its body, say
            self.connection.answer(self, status, headers, body)

    async def respond_in_pieces(
        self, status: int, headers: Sequence[Header], pieces: AsyncIterator[bytes]
    ) -> None:
        """Sends an answer as its pieces come, but no faster than the client reads.

        Only for HTTP/1.1. When the pieces raise an exception, so does this, and the connection is
        closed, so that the client sees that some are missing.

        Raises:
            ConnectionEnded: the client has gone, or has read nothing for too long.
        """
        await self.connection.stream(self, status, headers, pieces)

    # --- the connection's side

    def feed(self, chunk: bytes) -> None:
        if self.status:
            return  # answered without it
        self._size_bytes += len(chunk)
        if self._then is not None and self._size_bytes > self._limit_bytes:
            self._discard()
        else:
            self._chunks.append(chunk)
            if self._then is None and self._size_bytes > AHEAD_BYTES:
                self.connection.take_no_more()

    def receive(self, whole: Content | memoryview | None = None) -> None:
        """Notes that the body is whole, and is this one unless it was fed."""
        if whole is not None:
            self._chunks = [whole]
        self.is_received = True
        self._wake()

    def break_off(self) -> None:
        self.is_broken = True
        self._wake()

    def leave(self) -> None:
        on_left, self.on_left = self.on_left, None
        if on_left is not None:
            on_left()

    def _discard(self) -> None:
        self._refusal = PayloadTooLarge("")
        self._chunks.clear()
        if self._size_bytes > self._limit_bytes + _DISCARD_BYTES:
            self._wake()
        elif self._timer is not None:
            self._timer.cancel()
            loop = asyncio.get_running_loop()
            ends_s = min(self._ends_s, loop.time() + _DISCARD_PAUSE_S)
            self._timer = loop.call_at(ends_s, self._end_in_time)

    def _end_in_time(self) -> None:
        self.is_late = True
        self._wake()

    def _why_encoded(self) -> ServeError | None:
        try:
            refuse_encoded(self.fields.get("content-encoding", ""))
        except ServeError as error:
            return error
        # All lines together are one list.
        lines = [value for name, value in self.headers if name.lower() == "transfer-encoding"]
        if [line.strip().lower() for line in lines] not in ([], ["chunked"]):
            return BadRequest("The only transfer encoding is chunked.")
        return None

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
