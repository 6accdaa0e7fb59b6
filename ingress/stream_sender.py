"""Sends an answer in pieces, no faster than its client reads, and breaks off what has no end."""

import asyncio
import logging
from collections.abc import Mapping

from batching.errors import InternalError, ServeError
from ingress.connection import Connection, SlowClient
from ingress.door import connection_headers
from ingress.rsgi import HttpProtocol, HttpScope, ProtocolClosed, StreamTransport
from ingress.streamed_answer import StreamedAnswer

log = logging.getLogger(__name__)

FLUSH_S = 0.05


async def send_answer(
    answer: StreamedAnswer,
    scope: HttpScope,
    headers: Mapping[str, str],
    proto: HttpProtocol,
    limit_bytes: int,
) -> None:
    """The answer is sent in pieces, or in one where its end could not be told from a break.

    Raises:
        ServeError: nothing was sent.
    """
    connection = Connection.of(scope) if scope.http_version == "1.1" else None
    try:
        door_headers = connection_headers(scope, headers, answer.status)
        if connection is None:
            body = await _gathered(answer, limit_bytes)
            proto.response_bytes(answer.status, answer.headers + door_headers, body)
        else:
            transport = proto.response_stream(answer.status, answer.headers + door_headers)
            await _pump(answer, transport, connection)
    finally:
        if connection is not None:
            connection.close()
        await answer.close()


async def _pump(answer: StreamedAnswer, transport: StreamTransport, connection: Connection) -> None:
    """The client has the whole answer, or its connection has ended without the end of it."""
    try:
        async for piece in answer:
            await transport.send_bytes(piece)
            await connection.keep_pace()
    except ServeError as error:
        log.warning("stream broken off: %s", error.message)
        # The pieces before it are on their way through granian's threads.
        await asyncio.sleep(FLUSH_S)
        connection.break_off()
    except SlowClient:
        log.info("stream broken off: the client does not read")
        connection.break_off()
    except ProtocolClosed:
        pass  # the client has left
    except BaseException:
        connection.break_off()
        raise


async def _gathered(answer: StreamedAnswer, limit_bytes: int) -> bytes:
    pieces, size_bytes = [], 0
    async for piece in answer:
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise InternalError("The answer is too large for this connection.")
    return b"".join(pieces)
