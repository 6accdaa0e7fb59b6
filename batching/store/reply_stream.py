"""An answer that comes in pieces, as the ingress reads it.

The pieces wait in a list until the client has taken those before them, so that the list's length
tells the worker how far behind the client is. They are numbered: one that is read twice is dropped,
one that is missing breaks the stream.
"""

import asyncio
import contextlib
from collections import deque
from typing import Self

from batching import errors
from batching.protocol import BatchTiming, ProtocolError, Reply, ReplyChunk
from batching.store.ingress_queue import IngressQueue
from batching.store.patience import Patience
from batching.store.pending_request import PendingRequest, Pieces
from batching.store.records import is_queue_answer, queue_error
from batching.store.redis_errors import AWAY, store_unavailable


class ReplyStream(PendingRequest):
    """The pieces of one answer, for one reader, which reads to the end or closes it.

    It is the pending request of the rest of its answer. `timing` is the worker's, once the end was
    read.
    """

    is_stream = True

    def __init__(self, request: PendingRequest, queue: IngressQueue, patience: Patience) -> None:
        super().__init__(request.request_id)
        self.timeout_s = request.timeout_s
        self.is_queued = True
        self.timing: BatchTiming | None = None
        self._queue = queue
        self._patience = patience
        self._more = asyncio.Event()
        self._pieces: deque[ReplyChunk] = deque()
        self._next_index = 0
        self._taken = 0
        self._outcome: Reply | Exception | None = None
        self._is_read = False

    def poke(self) -> None:
        """Tells the reader that there may be something to read."""
        self._more.set()

    def on_reply(self, reply: Reply | Pieces) -> None:
        assert isinstance(reply, Reply)
        self._outcome = reply
        self._more.set()

    def on_error(self, error: Exception) -> None:
        self._outcome = error
        self._more.set()

    async def first(self) -> ReplyChunk:
        """Returns the first piece, which has the answer's status and headers; it stays to be read.

        Raises:
            ServeError: there is none.
        """
        if not await self._fill():
            raise _incomplete()
        return self._pieces[0]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Returns the next piece.

        Raises:
            ServeError: the rest of the answer will not come.
        """
        if not await self._fill():
            raise StopAsyncIteration
        # The time for the next piece begins now, and not when pieces are read, many at once: a
        # client that is slow to take them is not late.
        self.deadline = asyncio.get_running_loop().time() + self.timeout_s
        return self._pieces.popleft().body

    async def close(self) -> None:
        """Cancels the rest of the answer and deletes the pieces that were not read."""
        self.leave()
        if not self._is_read:
            # The worker may have replied already: then there is nothing to cancel.
            with contextlib.suppress(*AWAY):
                await self._queue.discard_chunks(self.request_id)

    async def _fill(self) -> bool:
        """Returns whether there is a piece to take; waits for it."""
        while not self._pieces and not self._is_read:
            self._more.clear()
            # Before the list is read: a worker sends all pieces before its reply.
            outcome = self._outcome
            if await self._read():
                continue
            if outcome is not None:
                self._take_end(outcome)
            else:
                await self._more.wait()
        return bool(self._pieces)

    async def _read(self) -> bool:
        wires = await self._fetch()
        self._taken = len(wires)
        for wire in wires:
            try:
                chunk = ReplyChunk.decode(wire)
            except ProtocolError as error:
                raise _incomplete() from error
            if chunk.index > self._next_index:
                raise _incomplete()
            if chunk.index == self._next_index:
                self._pieces.append(chunk)
                self._next_index += 1
        return bool(wires)

    async def _fetch(self) -> list[bytes]:
        end = asyncio.get_running_loop().time() + self._patience.read_s
        while True:
            try:
                return await self._queue.read_chunks(self.request_id, self._taken)
            except AWAY as error:
                # The list may have been cut or not: a piece that comes again has a number.
                self._taken = 0
                if asyncio.get_running_loop().time() > end:
                    raise store_unavailable(error) from error
                await asyncio.sleep(self._patience.retry_s)

    def _take_end(self, outcome: Reply | Exception) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        self.timing = outcome.timing
        if outcome.error_type and is_queue_answer(outcome.reason):
            raise queue_error(outcome.reason)  # its worker has died, say
        if outcome.error_type or outcome.chunks != self._next_index:
            raise _incomplete()
        self._is_read = True
        if outcome.body:
            self._pieces.append(ReplyChunk(self._next_index, bytes(outcome.body)))


def _incomplete() -> errors.ServeError:
    return errors.InternalError("The rest of the answer was lost.")
