"""An answer that is sent in pieces while its handler runs, on its way to either door."""

from collections.abc import Callable
from typing import Self

from batching.errors import ServeError
from batching.protocol import BatchTiming
from batching.store.ingress_side.reply_stream import ReplyStream

# As nginx logs it; nobody receives it.
CLIENT_CLOSED_REQUEST = 499

CountAnswer = Callable[[int, BatchTiming | None, str], None]


class StreamedAnswer:
    """Status, headers, and pieces to iterate over once. Whoever gets it closes it."""

    def __init__(
        self, status: int, headers: list[tuple[str, str]], stream: ReplyStream, count: CountAnswer
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
            self._outcome = (self.status, "")
            raise
        except ServeError as error:
            self._outcome = (error.status, error.reason)
            raise
        return piece

    async def close(self) -> None:
        """It is counted, and what was not read will not be run on."""
        status, reason = self._outcome
        self._count(status, self._stream.timing, reason)
        await self._stream.close()
