"""Sends an answer in pieces, no faster than its client reads, and breaks off what has no end."""

import logging

from batching.errors import InternalError, ServeError
from ingress.http1.exchange import ChunkWriter, ConnectionEnded, Exchange
from ingress.http1.head import WITHOUT_BODY
from ingress.predictions.streamed_answer import StreamedAnswer

log = logging.getLogger(__name__)


async def send_answer(answer: StreamedAnswer, exchange: Exchange, limit_bytes: int) -> None:
    """Sends the answer in pieces, or as one to a client that could not tell its end.

    HTTP/1.0 knows no chunks; the answer to HEAD, and one with 204 or 304, has no body at all.

    Raises:
        ServeError: nothing was sent.
    """
    try:
        has_body = exchange.method != "HEAD" and answer.status not in WITHOUT_BODY
        if exchange.http_version == "1.1" and has_body:
            stream = exchange.respond_in_pieces(answer.status, answer.headers)
            await _pump(answer, stream)
        else:
            body = await _gathered(answer, limit_bytes)
            exchange.respond(answer.status, answer.headers, body)
    finally:
        await answer.close()


async def _pump(answer: StreamedAnswer, stream: ChunkWriter) -> None:
    """Sends the whole answer, or breaks the connection off before its end."""
    try:
        async for piece in answer:
            await stream.send(piece)
        stream.end()
    except ServeError as error:
        log.warning("stream broken off: %s", error.message)
    except ConnectionEnded:
        pass  # the client has left, or does not read


async def _gathered(answer: StreamedAnswer, limit_bytes: int) -> bytes:
    pieces, size_bytes = [], 0
    async for piece in answer:
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise InternalError("The answer is too large for this connection.")
    return b"".join(pieces)
