"""Reads a request body from granian without ever holding more than the limit."""

import asyncio
from collections.abc import Mapping

from batching.errors import BadRequest, PayloadTooLarge, RequestTimeout, ServeError
from ingress.rsgi import HttpProtocol, ProtocolClosed

# Time for a whole body; a client slower than this is closed rather than kept.
BODY_TIMEOUT_S = 60.0

# Each chunk wakes the event loop (60 us); a body of one-byte chunks would keep it busy for minutes.
MAX_CHUNKS = 16_384

_SMALL_BYTES = 64 * 1024
_TOO_SLOW = "body too slow"


class UnsupportedEncoding(ServeError):
    """The body would have to be unpacked first; 10 MB of gzip can be 10 GB of zeros."""

    status = 415
    type = "UnsupportedMediaTypeException"
    reason = "unsupported_encoding"


def refuse_encoded(content_encoding: str) -> None:
    """Nothing happens to a body that is sent as it is.

    Raises:
        UnsupportedEncoding: it is compressed.
    """
    if content_encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedEncoding("Bodies are taken as they are: send no Content-Encoding.")


async def read_body(proto: HttpProtocol, headers: Mapping[str, str], limit_bytes: int) -> bytes:
    """The whole body. Nothing is read when its announced length is over the limit.

    Raises:
        UnsupportedEncoding: the body is compressed.
        PayloadTooLarge: more than `limit_bytes`, announced or found while reading.
        BadRequest: the connection ended first, or the body came in absurdly many or broken chunks.
        RequestTimeout: it did not come within a minute.
    """
    refuse_encoded(headers.get("content-encoding", ""))
    length, transfer = headers.get("content-length"), headers.get("transfer-encoding")
    if transfer is not None and transfer.strip().lower() != "chunked":
        raise BadRequest("The only transfer encoding is chunked.")
    if length is None and transfer is None:
        return b""
    # granian has refused lengths that are no numbers, and stops at the announced one.
    if length is not None and int(length) > limit_bytes:
        raise PayloadTooLarge(f"More than {limit_bytes} bytes.")
    try:
        if length is not None and int(length) <= _SMALL_BYTES:
            return await _read_small(proto)
        async with asyncio.timeout(BODY_TIMEOUT_S):
            if length is None:
                return await _read_chunked(proto, limit_bytes)
            return await proto()
    except TimeoutError as error:
        raise RequestTimeout("The request body did not arrive in time.") from error
    except ProtocolClosed as error:
        raise BadRequest("The request body is incomplete.") from error


async def _read_small(proto: HttpProtocol) -> bytes:
    """As under `asyncio.timeout`, which costs more than reading a body that is there already."""
    task = asyncio.current_task()
    assert task is not None
    timer = asyncio.get_running_loop().call_later(BODY_TIMEOUT_S, task.cancel, _TOO_SLOW)
    try:
        return await proto()
    except asyncio.CancelledError as error:
        if error.args == (_TOO_SLOW,):
            task.uncancel()
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()


async def _read_chunked(proto: HttpProtocol, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size_bytes = ends = 0
    async for chunk in proto:
        # A broken chunk and a lost connection end the iteration as quietly as the last chunk does,
        # only with one empty element more; so do trailers, which nobody sends.
        ends += not chunk
        chunks.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise PayloadTooLarge(f"More than {limit_bytes} bytes.")
        if len(chunks) > MAX_CHUNKS:
            raise BadRequest("The request body comes in too many chunks.")
    if ends > 1:
        raise BadRequest("The request body is incomplete.")
    return b"".join(chunks)
