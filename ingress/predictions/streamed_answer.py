"""An answer that is sent in pieces while its handler runs."""

import logging
from collections.abc import Callable
from typing import Protocol, Self

from batching.errors import InternalError, ServeError
from batching.protocol import BatchTiming
from batching.store.pending_request import ReplyStream
from ingress.http1.exchange import ConnectionEnded, Exchange
from ingress.http1.heads import WITHOUT_BODY

log = logging.getLogger(__name__)

# As nginx logs it; no client receives it.
CLIENT_CLOSED_REQUEST = 499


class Pieces(Protocol):
    """An answer in pieces, as far as it is sent. The caller that gets it closes it."""

    status: int
    headers: list[tuple[str, str]]

    def __aiter__(self) -> "Pieces": ...
    async def __anext__(self) -> bytes: ...
    def need_no_pieces(self) -> None: ...
    async def close(self) -> None: ...


class StreamedAnswer:
    """Yields the pieces of a prediction's answer; `count` is told how it has ended."""

    def __init__(
        self,
        status: int,
        headers: list[tuple[str, str]],
        stream: ReplyStream,
        count: Callable[[int, BatchTiming | None, str], None],
    ) -> None:
        self.status = status
        self.headers = headers
        self._stream = stream
        self._count = count
        self._outcome = (CLIENT_CLOSED_REQUEST, "client_left")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Returns the next piece, never empty.

        Raises:
            ServeError: the rest will not come.
        """
        try:
            while not (piece := await anext(self._stream)):
                pass
        except StopAsyncIteration:
            self.need_no_pieces()
            raise
        except ServeError as error:
            self._outcome = (error.status, error.reason)
            raise
        return piece

    def need_no_pieces(self) -> None:
        """Counts the answer as given."""
        self._outcome = (self.status, "")

    async def close(self) -> None:
        """Counts the answer, and tells a handler that still runs to stop."""
        status, reason = self._outcome
        self._count(status, self._stream.timing, reason)
        await self._stream.close()


async def send_answer(answer: Pieces, exchange: Exchange, limit_bytes: int) -> None:
    """Sends the answer in pieces, or as one to a client that could not tell its end.

    HTTP/1.0 knows no chunks. The answer to HEAD, and one with 204 or 304, has no body at all, and
    does not wait for the rest.

    Raises:
        ServeError: nothing was sent.
    """
    try:
        if exchange.method == "HEAD" or answer.status in WITHOUT_BODY:
            answer.need_no_pieces()
            exchange.respond(answer.status, answer.headers, b"")
        elif exchange.http_version == "1.1":
            await _send_pieces(answer, exchange)
        else:
            body = bytearray()
            async for piece in answer:
                body += piece
                if len(body) > limit_bytes:
                    raise InternalError("The answer is too large for this connection.")
            exchange.respond(answer.status, answer.headers, bytes(body))
    finally:
        await answer.close()


async def _send_pieces(answer: Pieces, exchange: Exchange) -> None:
    """Sends the pieces no faster than the client reads, or breaks the connection off."""
    exchange.respond_in_pieces(answer.status, answer.headers)
    try:
        async for piece in answer:
            await exchange.send(piece)
        exchange.end()
    except ServeError as error:
        log.warning("stream broken off: %s", error.message)
    except ConnectionEnded:
        pass  # the client has left, or does not read
    finally:
        if not exchange.is_ended:
            exchange.cut_off()
