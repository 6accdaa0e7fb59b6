"""Reads a request's body without ever holding more than the limit."""

import asyncio
from collections.abc import Mapping

from batching.errors import BadRequest, PayloadTooLarge, RequestTimeout, ServeError
from ingress.http1.exchange import ConnectionEnded, Exchange

# Each chunk wakes the event loop (60 us): a body of one-byte chunks would keep it busy for minutes.
MAX_CHUNKS = 16_384
# Where `max_request_size` makes that more.
LEAST_CHUNK_BYTES = 256

# At most so much of a refused body is read, with no longer pauses.
_DISCARD_BYTES = 64 * 1024 * 1024
_DISCARD_PAUSE_S = 0.25


class UnsupportedEncoding(ServeError):
    """The body is compressed; 10 MB of gzip can be 10 GB of zeros."""

    status = 415
    type = "UnsupportedMediaTypeException"
    reason = "unsupported_encoding"


def refuse_encoded(content_encoding: str) -> None:
    """Checks that the body is not compressed.

    Raises:
        UnsupportedEncoding: it is compressed.
    """
    if content_encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedEncoding("Bodies are taken as they are: send no Content-Encoding.")


def plain_length_bytes(headers: Mapping[str, str], limit_bytes: int) -> int | None:
    """Returns the length of a body that only has to be waited for; None of any other.

    Others are too large, encoded, come in chunks, or when the client is told to go on.
    """
    if "transfer-encoding" in headers or "content-encoding" in headers or "expect" in headers:
        return None
    length_bytes = _length_bytes(headers.get("content-length", "0"))
    return length_bytes if length_bytes <= limit_bytes else None


def received_body(exchange: Exchange) -> bytes | bytearray:
    """Returns the body once `Exchange.when_received` calls.

    Raises:
        BadRequest, RequestTimeout: as `read_body`.
    """
    if exchange.is_received:
        return exchange.received()
    raise _too_slow() if exchange.is_late else _incomplete()


async def read_body(
    exchange: Exchange,
    headers: Mapping[str, str],
    limit_bytes: int,
    timeout_s: float,
) -> bytes | bytearray:
    """Returns the whole body, or refuses one that is over the limit and keeps nothing of it.

    Raises:
        UnsupportedEncoding: the body is compressed.
        PayloadTooLarge: it has more than `limit_bytes`, announced or found while reading.
        BadRequest: the connection ended first, or the body came in absurdly many or broken chunks.
        RequestTimeout: it did not arrive within `timeout_s`.
    """
    if "content-encoding" in headers:
        refuse_encoded(headers["content-encoding"])
    length, transfer = headers.get("content-length"), headers.get("transfer-encoding")
    if transfer is not None and _codings(exchange) != ["chunked"]:
        raise BadRequest("The only transfer encoding is chunked.")
    if length is None and transfer is None:
        return b""
    length_bytes = None if length is None else _length_bytes(length)
    is_too_large = length_bytes is not None and length_bytes > limit_bytes
    if is_too_large and "expect" in headers:  # a client that waits to go on has sent nothing yet
        raise PayloadTooLarge(f"More than {limit_bytes} bytes.")
    try:
        return await _read_pieces(exchange, limit_bytes, timeout_s, is_too_large=is_too_large)
    except TimeoutError as error:
        raise _too_slow() from error
    except ConnectionEnded as error:
        raise _incomplete() from error


def _length_bytes(text: str) -> int:
    # The parser refuses a length that is no number, and stops at the announced one. Thousands of
    # zeros before it would be too many digits for int().
    return int(text.lstrip("0") or "0")


def _too_slow() -> RequestTimeout:
    return RequestTimeout("The request body did not arrive in time; raise body_timeout.")


def _incomplete() -> BadRequest:
    return BadRequest("The request body is incomplete.")


def _codings(exchange: Exchange) -> list[str]:
    # All lines together are one list.
    lines = (value for name, value in exchange.headers if name.lower() == "transfer-encoding")
    return [value.strip().lower() for value in lines]


class _Pieces:
    """Collects a body that comes in pieces; keeps nothing of one that is too large."""

    def __init__(self, limit_bytes: int, *, is_too_large: bool) -> None:
        self._limit_bytes = limit_bytes
        self._most = max(MAX_CHUNKS, limit_bytes // LEAST_CHUNK_BYTES)
        self._kept: list[bytes | bytearray] = []
        self._count = self._size_bytes = 0
        self.is_too_large = is_too_large

    def add(self, chunk: bytes | bytearray) -> bool:
        """Adds a piece; returns whether to read on."""
        self._count += 1
        self._size_bytes += len(chunk)
        self.is_too_large = self.is_too_large or self._size_bytes > self._limit_bytes
        if self.is_too_large:
            self._kept.clear()
        else:
            self._kept.append(chunk)
        return self._count <= self._most and self._size_bytes <= _DISCARD_BYTES + self._limit_bytes

    def whole(self) -> bytes:
        """Returns the body.

        Raises:
            PayloadTooLarge: it is over the limit.
            BadRequest: it came in too many pieces.
        """
        if self.is_too_large:
            raise PayloadTooLarge(f"More than {self._limit_bytes} bytes.")
        if self._count > self._most:
            raise BadRequest(
                f"The request body comes in more than {self._most} chunks: send larger ones, or "
                "raise max_request_size."
            )
        return b"".join(self._kept)


async def _read_pieces(
    exchange: Exchange, limit_bytes: int, timeout_s: float, *, is_too_large: bool = False
) -> bytes:
    """Returns a body whose length is not known, or known to be too large.

    A body over the limit is read on for a while, but not kept. A socket that is closed while the
    client still sends answers with a reset, and the client may never see why it was refused. A
    client that pauses probably waits for the answer.
    """
    pieces = _Pieces(limit_bytes, is_too_large=is_too_large)
    now = asyncio.get_running_loop().time
    end = now() + timeout_s
    try:
        async with asyncio.timeout_at(now() + _DISCARD_PAUSE_S if is_too_large else end) as timer:
            async for chunk in exchange.pieces():
                if not pieces.add(chunk):
                    break
                if pieces.is_too_large:
                    timer.reschedule(min(end, now() + _DISCARD_PAUSE_S))
    except (TimeoutError, ConnectionEnded):
        if not pieces.is_too_large:
            raise
    return pieces.whole()
