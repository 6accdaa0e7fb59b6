"""An answer that comes in pieces, as the ingress reads it.

The pieces wait in a list until the client has taken those before them, so that the list's length
tells the worker how far behind the client is. They are numbered: one that is read twice is dropped,
one that is missing breaks the stream.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Self

from batching import errors
from batching.protocol import BatchTiming, ProtocolError, Reply, ReplyChunk
from batching.store.ingress_side.ingress_queue import IngressQueue
from batching.store.ingress_side.patience import Patience
from batching.store.ingress_side.pending_request import PendingRequest, Pieces
from batching.store.redis_errors import AWAY
from batching.store.replies import is_queue_answer, queue_error
from batching.store.unavailable import store_unavailable


class ReplyStream:
    """The pieces of one answer, for one reader, which reads to the end or closes it.

    `timing` is the worker's, once the end was read.
    """

    def __init__(
        self,
        rest: PendingRequest,
        queue: IngressQueue,
        leave: Callable[[PendingRequest], object],
        patience: Patience,
    ) -> None:
        self.timing: BatchTiming | None = None
        self._rest = rest
        self._queue = queue
        self._leave = leave
        self._patience = patience
        self._more = asyncio.Event()
        self._pieces: deque[ReplyChunk] = deque()
        self._next_index = 0
        self._taken = 0
        self._is_over = False
        rest.reply.add_done_callback(self._on_end)

    def poke(self) -> None:
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
        self._rest.deadline = asyncio.get_running_loop().time() + self._rest.timeout_s
        return self._pieces.popleft().body

    async def close(self) -> None:
        """Cancels the rest of the answer and deletes the pieces that were not read."""
        self._leave(self._rest)
        if not self._is_over:
            # The worker may have replied already: then there is nothing to cancel.
            with contextlib.suppress(*AWAY):
                await self._queue.discard_chunks(self._rest.request_id)

    async def _fill(self) -> bool:
        """Returns whether there is a piece to take; waits for it."""
        while not self._pieces and not self._is_over:
            self._more.clear()
            # Before the list is read: a worker sends all pieces before its reply.
            has_ended = self._rest.reply.done()
            if await self._read():
                continue
            if has_ended:
                self._end()
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
                return await self._queue.read_chunks(self._rest.request_id, self._taken)
            except AWAY as error:
                # The list may have been cut or not: a piece that comes again has a number.
                self._taken = 0
                if asyncio.get_running_loop().time() > end:
                    raise store_unavailable(error) from error
                await asyncio.sleep(self._patience.retry_s)

    def _end(self) -> None:
        reply = self._rest.reply.result()
        assert isinstance(reply, Reply)
        self.timing = reply.timing
        if reply.error_type and is_queue_answer(reply.reason):
            raise queue_error(reply.reason)  # its worker has died, say
        if reply.error_type or reply.chunks != self._next_index:
            raise _incomplete()
        self._is_over = True
        if reply.body:
            self._pieces.append(ReplyChunk(self._next_index, reply.body))

    def _on_end(self, reply: asyncio.Future[Reply | Pieces]) -> None:
        if not reply.cancelled():
            reply.exception()  # asyncio would complain if the reader has gone
        self._more.set()


def _incomplete() -> errors.ServeError:
    return errors.InternalError("The rest of the answer was lost.")
