"""Reads a request body from granian without ever holding more than the limit."""

import asyncio
import contextlib
from collections.abc import Mapping

from batching.errors import BadRequest, PayloadTooLarge, RequestTimeout, ServeError
from ingress.rsgi import HttpProtocol, ProtocolClosed

# Time for a whole body; a client slower than this is closed rather than kept.
BODY_TIMEOUT_S = 60.0

# Each chunk wakes the event loop (60 us); a body of one-byte chunks would keep it busy for minutes.
MAX_CHUNKS = 16_384

_SMALL_BYTES = 64 * 1024
# What is read of a refused body, at most.
_DISCARD_BYTES = 64 * 1024 * 1024
_DISCARD_S = 5.0
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
    """The whole body; nothing is kept of one that is over the limit.

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
    try:
        if length is not None:
            # granian has refused lengths that are no numbers, and stops at the announced one.
            return await _read_announced(proto, int(length), limit_bytes, "expect" in headers)
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read_chunked(proto, limit_bytes)
    except TimeoutError as error:
        raise RequestTimeout("The request body did not arrive in time.") from error
    except ProtocolClosed as error:
        raise BadRequest("The request body is incomplete.") from error


async def _read_announced(
    proto: HttpProtocol, length_bytes: int, limit_bytes: int, waits_for_continue: bool
) -> bytes:
    if length_bytes <= min(_SMALL_BYTES, limit_bytes):
        return await _read_small(proto)
    if length_bytes <= limit_bytes:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await proto()
    # A client that waits for 100-continue has sent nothing yet.
    if not waits_for_continue:
        await _discard(proto)
    raise PayloadTooLarge(f"More than {limit_bytes} bytes.")


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
            chunks.clear()
            await _discard(proto)
            raise PayloadTooLarge(f"More than {limit_bytes} bytes.")
        if len(chunks) > MAX_CHUNKS:
            raise BadRequest("The request body comes in too many chunks.")
    if ends > 1:
        raise BadRequest("The request body is incomplete.")
    return b"".join(chunks)


async def _discard(proto: HttpProtocol) -> None:
    """Reads on for a while without keeping anything.

    A socket that is closed while the client still sends answers with a reset, and the client may
    never see why it was refused. Bounded, so that nobody can keep the ingress reading.
    """
    size_bytes = 0
    with contextlib.suppress(TimeoutError, ProtocolClosed):
        async with asyncio.timeout(_DISCARD_S):
            async for chunk in proto:
                size_bytes += len(chunk)
                if size_bytes > _DISCARD_BYTES:
                    return
