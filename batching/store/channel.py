"""One ingress's traffic with one model version: submits coalesced, replies matched by id.

A channel has three small loops that run only while requests wait: its submitter submits those that
have gathered since its last round trip in one script call; `_read` blocks on this ingress's replies
list; `_audit` beats and asks, twice a second, where the requests are: an entry of the list or the
whole queue may be lost. A channel without waiting requests costs nothing.

The ingress that waits is what makes a request durable: it holds the body, and submits again what
Redis lost.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping

from batching import errors
from batching.drain_rate import DrainRate
from batching.models.spec import VersionKey
from batching.protocol import ProtocolError
from batching.request_ids import fresh_request_id
from batching.store.background_tasks import BackgroundTasks, end_tasks, keep_going
from batching.store.canceller import Canceller
from batching.store.deadlines import Deadlines
from batching.store.ingress_queue import AuditCode, IngressQueue
from batching.store.large_replies import LargeReplyFetcher
from batching.store.patience import USUAL_PATIENCE, Patience
from batching.store.pending_request import ClientLeft, PendingRequest
from batching.store.records import LargeReply, decode_reply, error_reply, queue_error
from batching.store.redis_errors import AWAY, REFUSED, OutageLog, queue_lost
from batching.store.reply_stream import ReplyStream
from batching.store.submitter import Submitter

log = logging.getLogger(__name__)

MOST_IN_LOG = 8

_Body = Callable[[], Coroutine[None, None, None]]


class Channel:
    """Submits for one version and waits for the replies."""

    def __init__(
        self,
        key: VersionKey,
        queue: IngressQueue,
        outage: OutageLog,
        patience: Patience = USUAL_PATIENCE,
    ) -> None:
        self.resubmitted = 0
        self._key = key
        self._patience = patience
        self._queue = queue
        self._outage = outage
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, PendingRequest] = {}
        self._drain_rate = DrainRate()
        self._used_at = self._loop.time()
        self._background = BackgroundTasks()
        self._canceller = Canceller(queue, self._deliver, self.fail, patience)
        self._submitter = Submitter(
            key, queue, outage, patience, channel=self, canceller=self._canceller
        )
        self._loops: dict[_Body, asyncio.Task[None] | None]
        self._loops = dict.fromkeys((self._submitter.flush, self._read, self._audit))
        self._deadlines = Deadlines(self._waiting, self._on_late)
        self._large_replies = LargeReplyFetcher(
            queue, lambda request_id: request_id in self._waiting, self._deliver
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Returns whether no client waits and no call is under way."""
        is_busy = any(task is not None and not task.done() for task in self._loops.values())
        others = (self._background, self._large_replies, self._canceller)
        return not (self._waiting or is_busy or any(other.is_busy for other in others))

    @property
    def unused_s(self) -> float:
        """Returns how long ago the last client left, in seconds."""
        return self._loop.time() - self._used_at

    def submit(self, request: PendingRequest) -> None:
        """Sends the request to a worker; its outcome comes as a call, later."""
        self._watch(request)
        self.enter(request)

    def leave(self, request: PendingRequest) -> None:
        """Gives the request up at once, as its client waits no more."""
        self.fail(request, ClientLeft())
        # Before its submit is answered it is given up there, as nothing is to be cancelled yet.
        if request.is_queued:
            self._canceller.cancel(request, ClientLeft())

    async def close(self) -> None:
        """Ends the loops and refuses the requests that still wait."""
        for request in list(self._waiting.values()):
            self.fail(request, errors.Draining("The server is shutting down.", retry_after_s=1.0))
        self._deadlines.close()
        await end_tasks(filter(None, self._loops.values()))
        await self._background.close()
        await self._large_replies.close()
        await self._canceller.close()
        await self._queue.close()

    def enter(self, request: PendingRequest) -> None:
        """Submits the request, for the first time or once more."""
        # A loop goes on while it has something to do, so that most requests find all of them going.
        are_all_going = bool(self._waiting and self._submitter.pending)
        self._waiting[request.request_id] = request
        self._submitter.pending.append(request)
        if not are_all_going:
            self._start_loops()

    def _start_loops(self) -> None:
        for body, task in self._loops.items():
            if task is None or task.done():
                going = keep_going(body, "model={} version={}".format(*self._key))
                self._loops[body] = self._loop.create_task(going)

    def fail(self, request: PendingRequest, error: Exception) -> None:
        """Ends the request with this error, unless it has an outcome already."""
        if not request.is_over:
            self._used_at = self._loop.time()
            if self._waiting.get(request.request_id) is request:  # and not the rest of its answer
                del self._waiting[request.request_id]
            request.fail(error)

    def retry_after_s(self) -> float:
        """Estimates when those that wait now will have been answered."""
        return self._drain_rate.retry_after_s(len(self._waiting), self._loop.time())

    def _watch(self, request: PendingRequest) -> None:
        request.channel, request.entered_at = self, self._loop.time()
        request.deadline = request.entered_at + request.timeout_s
        if request.deadline < self._deadlines.due_at:
            self._deadlines.set(request.deadline)

    def _on_late(self, request: PendingRequest) -> None:
        text = "The request's deadline passed before its answer was there."
        self._canceller.cancel(request, errors.DeadlineExceeded(text))

    # --- receive

    async def _read(self) -> None:
        delivered: list[str] = []
        # A request may come while the last replies are being discarded.
        while self._waiting or delivered:
            try:
                if self._waiting:
                    delivered = self._deliver(await self._queue.receive(delivered))
                    self._outage.over("receive")
                else:
                    discarded, delivered = delivered, []
                    await self._queue.discard(discarded)
            except AWAY as error:
                # Entries may have been popped into the broken connection; the audit finds out.
                if isinstance(error, REFUSED):
                    # Replies come late then, by the audit, and no other call would say why.
                    self._outage.note("receive", error)
                self._submitter.note_outage()
                delivered = []
                await asyncio.sleep(self._patience.retry_s)

    def _deliver(self, values: Mapping[str, bytes | memoryview | None]) -> list[str]:
        """Resolves the requests; returns the ids whose reply keys are needed no more."""
        delivered: list[str] = []
        for request_id, value in values.items():
            request = self._waiting.get(request_id)
            if request is None:
                delivered.append(request_id)
                continue
            if value is None:
                self._look_for_chunks(request)
                continue
            try:
                reply = decode_reply(request_id, value)
                if reply.chunks and not request.is_stream:
                    request = self._open_stream(request)
                delivered.append(request_id)
                self._waiting.pop(request_id, None)
                request.resolve(reply)
            except LargeReply as reply_elsewhere:
                # The reply key stays until the reply was read, so that the audit does not miss it.
                self._large_replies.add(request_id, reply_elsewhere.attempt)
            except ProtocolError as error:
                log.error("unreadable reply request=%s: %s", request_id, error)
                text = "The worker's answer cannot be read."
                del self._waiting[request_id]
                request.resolve(error_reply(errors.InternalError(text)))
        self._used_at = self._loop.time()
        self._drain_rate.count(self._used_at, len(delivered))
        return delivered

    # --- answers in pieces

    def _look_for_chunks(self, request: PendingRequest) -> None:
        async def look() -> None:
            with contextlib.suppress(*AWAY):
                if await self._queue.read_chunks(request.request_id, 0):
                    self._open_stream(request)

        if isinstance(request, ReplyStream):
            request.poke()
        elif not request.is_over:
            self._background.start(look())

    def _open_stream(self, request: PendingRequest) -> PendingRequest:
        """Gives the client a stream; returns the pending request for the rest of the answer."""
        if request.is_over:
            return self._waiting.get(request.request_id, request)
        stream = ReplyStream(request, self._queue, self._patience)
        self._watch(stream)
        self._waiting[stream.request_id] = stream
        request.resolve(stream)
        return stream

    # --- audit

    async def _audit(self) -> None:
        while self._waiting:
            asked = {one.request_id: one for one in self._waiting.values() if one.is_queued}
            await asyncio.sleep(self._patience.audit_s)
            due = [
                request_id
                for request_id, request in asked.items()
                if not request.is_over and request.request_id == request_id
            ]
            with contextlib.suppress(*AWAY):
                codes = await self._queue.audit(due)
                await self._heal(dict(zip(due, codes, strict=True)))

    async def _heal(self, codes: dict[str, AuditCode]) -> None:
        replied = [request_id for request_id, code in codes.items() if code is AuditCode.REPLIED]
        if replied:
            self._deliver(await self._queue.fetch(replied))
        lost: list[tuple[str, PendingRequest]] = []
        for request_id, code in codes.items():
            request = self._waiting.get(request_id)
            if request is None or request.is_over:
                continue
            if code is AuditCode.LOST:
                lost.append((request_id, request))
            elif code is AuditCode.STREAMED:
                self._look_for_chunks(request)
            elif code is AuditCode.ABANDONED:
                self._canceller.cancel(request, queue_error("unregistered"))
        pairs = [f"{old_id}:{one.request_id}" for old_id, one in lost if self._resubmit(one)]
        if pairs:
            self.resubmitted += len(pairs)
            log.warning(
                "resubmitted model=%s version=%s requests=%d old:new=%s",
                *(*self._key, len(pairs), ",".join(pairs[:MOST_IN_LOG])),
            )

    def _resubmit(self, request: PendingRequest) -> bool:
        """Submits a lost request again, under a new id; returns false if it fails it instead.

        A reply to the old id reaches no client.
        """
        left_s = request.deadline - self._loop.time()
        is_late = left_s < self._patience.resubmit_share * request.timeout_s
        # The client has the first pieces of a stream: another run would send them again.
        if is_late or request.is_stream:
            self.fail(request, queue_lost())
            return False
        del self._waiting[request.request_id]
        request.enter_anew(fresh_request_id(), self._loop.time())
        self.enter(request)
        return True
