"""A request on its way to its one outcome, which comes as a call."""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Self

from batching import errors
from batching.protocol import NO_WIRE, BatchTiming, ProtocolError, Reply, ReplyChunk, Wire
from batching.store.ingress_queue import IngressQueue, Patience
from batching.store.records import QUEUE_ANSWERS, queue_error
from batching.store.redis_errors import AWAY, store_unavailable

log = logging.getLogger(__name__)


class ClientLeft(Exception):
    """Says that the client closed its connection; the request was cancelled."""


class PendingRequest(ABC):
    """A request that gets one call of `on_reply` or of `on_error`. Lives on one event loop.

    `entered_at` and `deadline` are the event loop's time, 0 until the request is submitted. One
    that Redis lost is submitted again, under another id and with its old deadline.
    """

    # What holds for most is the class's until it changes.
    wire: Wire = NO_WIRE
    timeout_s = entered_at = deadline = 0.0
    leave_channel: Callable[["PendingRequest"], None] | None = None
    is_queued = is_resubmitted = False
    is_over = False  # has its outcome
    is_given_up = False  # has its outcome, which is no reply
    is_stream = False  # an answer in pieces is the pending request of its own rest

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id

    @abstractmethod
    def on_reply(self, reply: "Reply | ReplyStream") -> None:
        """Takes the reply; one in pieces is to be closed."""

    @abstractmethod
    def on_error(self, error: Exception) -> None:
        """Takes the reason why there will be no reply: a ServeError, or ClientLeft."""

    def leave(self) -> None:
        """Gives the request up, as its client waits no more."""
        if self.leave_channel is None:
            self.fail(ClientLeft())
        elif not self.is_over:
            self.leave_channel(self)

    def resolve(self, reply: "Reply | ReplyStream") -> None:
        """Ends the request with this reply, unless it has an outcome already."""
        if not self.is_over:
            self.is_over = True
            self.wire = NO_WIRE  # lists may hold the request for longer
            try:
                self.on_reply(reply)
            except Exception:  # another request's reply comes next
                log.exception("reply not taken request=%s", self.request_id)

    def fail(self, error: Exception) -> None:
        """Ends the request with this error, unless it has an outcome already."""
        if not self.is_over:
            self.is_over = self.is_given_up = True
            self.wire = NO_WIRE  # as above
            try:
                self.on_error(error)
            except Exception:
                log.exception("error not taken request=%s", self.request_id)


class AwaitedRequest(PendingRequest):
    """A request whose client is a coroutine, which calls `outcome`."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self._outcome: asyncio.Future[Reply | ReplyStream]
        self._outcome = asyncio.get_running_loop().create_future()

    def on_reply(self, reply: "Reply | ReplyStream") -> None:
        if not self._outcome.done():
            self._outcome.set_result(reply)

    def on_error(self, error: Exception) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    async def outcome(self) -> "Reply | ReplyStream":
        """Returns the reply, or raises the error; a cancellation gives the request up."""
        try:
            return await self._outcome
        except asyncio.CancelledError:
            self.leave()
            raise


class ReplyStream(PendingRequest):
    """Yields the pieces of one answer to one reader, which reads to the end or closes it.

    It is the pending request of the rest of its answer. The pieces wait in a list until the client
    has taken those before them, so that the list's length tells the worker how far behind the
    client is. They are numbered: one that is read twice is dropped, one that is missing breaks the
    stream. `timing` is the worker's, once the end was read.
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
        self._more.set()

    def on_reply(self, reply: "Reply | ReplyStream") -> None:
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
        """Reads the next pieces; returns whether there were any."""
        now = asyncio.get_running_loop().time
        end = now() + self._patience.read_s
        while True:
            try:
                wires = await self._queue.read_chunks(self.request_id, self._taken)
                break
            except AWAY as error:
                # The list may have been cut or not: a piece that comes again has a number.
                self._taken = 0
                if now() > end:
                    raise store_unavailable(error) from error
                await asyncio.sleep(self._patience.retry_s)
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

    def _take_end(self, outcome: Reply | Exception) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        self.timing = outcome.timing
        if outcome.error_type and outcome.reason in QUEUE_ANSWERS:
            raise queue_error(outcome.reason)  # its worker has died, say
        if outcome.error_type or outcome.chunks != self._next_index:
            raise _incomplete()
        self._is_read = True
        if outcome.body:
            self._pieces.append(ReplyChunk(self._next_index, bytes(outcome.body)))


def _incomplete() -> errors.ServeError:
    return errors.InternalError("The rest of the answer was lost.")
