"""Passes files between Flask's threads and the event loop, piece by piece, in either direction."""

import asyncio
import io
import re
from collections.abc import Iterator

from werkzeug.wrappers import Response

from batching.errors import BadRequest, RequestTimeout
from batching.process.daemon_thread import in_daemon_thread
from ingress.http1.exchange import ConnectionEnded, Content, Exchange

# A client that sends nothing for so long is gone; the whole may take as long as it likes.
_SILENCE_S = 60.0
_CONTENT_PATH = re.compile(r"/v1/files/[^/]+/content/?")
# The connection writes these itself.
_SERVER_OWNED = frozenset({"content-length", "connection", "server", "date"})


def is_of_file(method: str, path: str) -> bool:
    """Returns whether the request's body, or its answer, is a file of bulk work."""
    is_upload = method == "POST" and path.rstrip("/") == "/v1/files"
    return is_upload or (method == "GET" and _CONTENT_PATH.fullmatch(path) is not None)


class ArrivingBody(io.RawIOBase):
    """Lets a thread read the body of a request while it arrives; holds the client up meanwhile."""

    def __init__(self, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        self._pieces = exchange.pieces()
        self._loop = loop
        self._left: memoryview = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        """Fills the buffer with what comes next; returns 0 at the end.

        Raises:
            BadRequest: the connection ended before the body did.
            RequestTimeout: the client sent nothing for a minute.
        """
        while not self._left:
            try:
                piece = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
            except ConnectionEnded as error:
                raise BadRequest("The request body is incomplete.") from error
            except TimeoutError as error:
                raise RequestTimeout("The request body did not arrive in time.") from error
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    async def _next(self) -> Content | None:
        async with asyncio.timeout(_SILENCE_S):
            return await anext(self._pieces, None)


async def send_response(response: Response, exchange: Exchange) -> None:
    """Sends what Flask gives, no faster than the client reads; closes the response."""
    headers = [(name.lower(), value) for name, value in response.headers]
    kept = [header for header in headers if header[0] not in _SERVER_OWNED]
    pieces: Iterator[bytes] = response.iter_encoded()
    try:
        if not response.is_streamed or exchange.http_version != "1.1":
            body = await in_daemon_thread(lambda: b"".join(pieces))
            exchange.respond(response.status_code, kept, body)
            return
        exchange.respond_in_pieces(response.status_code, kept)
        while (piece := await in_daemon_thread(lambda: next(pieces, None))) is not None:
            await exchange.send(piece)
        exchange.end()
    except ConnectionEnded:
        pass  # the client has left, or does not read
    finally:
        response.close()
        if exchange.status and not exchange.is_ended:
            exchange.cut_off()
