"""Reads a request body from granian without ever holding more than the limit."""

import asyncio
from collections.abc import Mapping

from batching.errors import BadRequest, PayloadTooLarge, RequestTimeout
from ingress.rsgi import HttpProtocol, ProtocolClosed

# Time for a whole body; a client slower than this is closed rather than kept.
BODY_TIMEOUT_S = 60.0

# Each chunk wakes the event loop (60 us); a body of one-byte chunks would keep it busy for minutes.
MAX_CHUNKS = 16_384


async def read_body(proto: HttpProtocol, headers: Mapping[str, str], limit_bytes: int) -> bytes:
    """The whole body. Nothing is read when its announced length is over the limit.

    Raises:
        PayloadTooLarge: more than `limit_bytes`, announced or found while reading.
        BadRequest: the connection ended first, or the body came in absurdly many chunks.
        RequestTimeout: it did not come within a minute.
    """
    length = headers.get("content-length")
    if length is None and "transfer-encoding" not in headers:
        return b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            if length is None:
                return await _read_chunked(proto, limit_bytes)
            # granian has refused lengths that are no numbers, and stops at the announced one.
            if int(length) > limit_bytes:
                raise PayloadTooLarge(f"More than {limit_bytes} bytes.")
            return await proto()
    except TimeoutError as error:
        raise RequestTimeout("The request body did not arrive in time.") from error
    except ProtocolClosed as error:
        raise BadRequest("The request body is incomplete.") from error


async def _read_chunked(proto: HttpProtocol, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in proto:
        chunks.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise PayloadTooLarge(f"More than {limit_bytes} bytes.")
        if len(chunks) > MAX_CHUNKS:
            raise BadRequest("The request body comes in too many chunks.")
    return b"".join(chunks)
