"""One ingress's traffic with one model version: submits coalesced, replies matched by id.

Three loops run while requests wait: `_flush` submits those that have gathered since its last round
trip in one script call; `_read` blocks on this ingress's replies list; `_audit` beats and asks,
twice a second, where the requests are: an entry of the list or the whole queue may be lost. The
ingress that waits makes a request durable: it holds the body, and submits again what Redis lost.
"""

import asyncio
import contextlib
import logging
import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import accumulate, islice

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.models.spec import VersionKey
from batching.policy import DrainRate
from batching.protocol import ProtocolError, Wire, fresh_request_id
from batching.store.arena import IngressMemory
from batching.store.background_tasks import BackgroundTasks, end_tasks, keep_going
from batching.store.ingress_queue import (
    AuditCode,
    CancelCode,
    IngressQueue,
    Patience,
    Submission,
    SubmitCode,
    refusal,
)
from batching.store.pending_request import ClientLeft, PendingRequest, ReplyStream
from batching.store.records import AnswerGone, BodyElsewhere, LargeReply, decode_reply, queue_error
from batching.store.redis_errors import AWAY, REFUSED, OutageLog, queue_lost, store_unavailable

log = logging.getLogger(__name__)

SUBMIT_AT_ONCE = CANCEL_AT_ONCE = 256
MOST_IN_LOG = 8
# No claim gets a request that was given up more than 0.3 s before, not even after an outage.
CANCEL_AGAIN_S = 0.2
LOOK_AGAIN_S = 0.01  # deadlines that pass within this time share one look
LARGE_AT_ONCE = 8  # replies of megabytes each must not come in one piece

_Body = Callable[[], Coroutine[None, None, None]]


def take_some(pending: list[PendingRequest], most_bytes: int) -> list[PendingRequest]:
    """Takes as many from the front as one submit may bring; returns those that still wait."""
    first = pending[:SUBMIT_AT_ONCE]
    sums_bytes = accumulate(len(request.wire.head) + len(request.wire.body) for request in first)
    count = max(1, bisect(list(sums_bytes), most_bytes))
    del pending[:count]
    return [request for request in first[:count] if not request.is_over]


class Channel:
    """Submits for one version and waits for the replies."""

    def __init__(
        self,
        key: VersionKey,
        queue: IngressQueue,
        outage: OutageLog,
        patience: Patience,
        *,
        memory: IngressMemory,
        resubmitted: Counter[VersionKey],
    ) -> None:
        self._key = key
        self._patience = patience
        self._queue = queue
        self._memory = memory
        self._has_large_bodies = False  # since the last look at the workers
        self._shares_memory = False  # with all of them, as far as is known
        self._outage = outage
        self._resubmitted = resubmitted
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, PendingRequest] = {}
        self._pending: list[PendingRequest] = []
        self._cancelled: dict[str, float] = {}  # request id -> deadline; Redis is to hear of it
        self._failing: dict[str, tuple[PendingRequest, Exception]] = {}  # soon
        self._large: dict[str, str] = {}  # request id -> attempt
        self._drain_rate = DrainRate()
        # When a client last left, a submit succeeded, one queued a request, Redis was away.
        self.used_at = self._loop.time()
        self._moved_at = 0.0
        self._was_away_at = self._queued_at = -patience.back_s
        self._looks_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._looks = BackgroundTasks()
        self._tasks: dict[_Body, asyncio.Task[None]] = {}
        self._always = (self._flush, self._read, self._audit)  # while requests wait

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Returns whether no client waits and no call is under way."""
        is_busy = any(not task.done() for task in self._tasks.values())
        return not (self._waiting or is_busy or self._looks.is_busy)

    def submit(self, request: PendingRequest) -> None:
        self._watch(request)
        self._submit_soon(request)

    def leave(self, request: PendingRequest) -> None:
        """Gives the request up at once, as its client waits no more."""
        self._fail(request, ClientLeft())
        # Before its submit is answered it is given up there, as nothing is to be cancelled yet.
        if request.is_queued:
            self._cancel(request, ClientLeft())

    async def close(self) -> None:
        """Ends the loops and refuses the requests that still wait; those not cancelled expire."""
        for request in list(self._waiting.values()):
            self._fail(request, errors.Draining("The server is shutting down.", retry_after_s=1.0))
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks(self._tasks.values())
        await self._looks.close()
        await self._queue.close()

    def _submit_soon(self, request: PendingRequest) -> None:
        """Submits the request, for the first time or once more, unless it is over."""
        if request.is_over:
            return
        # A loop goes on while it has something to do, so that most requests find all of them going.
        are_all_going = bool(self._waiting and self._pending)
        self._waiting[request.request_id] = request
        self._pending.append(request)
        if not are_all_going:
            for body in self._always:
                self._start(body)

    def _start(self, body: _Body) -> None:
        """Runs the body, unless it is running."""
        task = self._tasks.get(body)
        if task is None or task.done():
            self._tasks[body] = self._loop.create_task(self._run(body))

    async def _run(self, body: _Body) -> None:
        try:
            await body()
        except Exception as error:
            name = f"model={self._key.model_name} version={self._key.model_version}"
            await keep_going(body, name, failure=error)

    def _fail(self, request: PendingRequest, error: Exception) -> None:
        """Ends the request with this error, unless it has an outcome already."""
        if not request.is_over:
            self.used_at = self._loop.time()
            if self._waiting.get(request.request_id) is request:  # and not the rest of its answer
                del self._waiting[request.request_id]
            request.fail(error)

    # --- submit

    async def _flush(self) -> None:
        while self._pending:
            await asyncio.sleep(0)  # requests that arrive in the same turn of the loop go along
            requests = take_some(self._pending, self._patience.submit_bytes)
            if not requests:
                continue
            try:
                codes = await self._submit(requests)
            except errors.ServeError as error:
                self._give_up(requests, error)
                continue
            except Exception:
                self._give_up(requests, errors.InternalError("The request was not passed on."))
                raise
            self._outage.over("submit")
            self._moved_at = self._loop.time()
            for request in requests:
                # Others were answered meanwhile, or have left: an earlier try has queued them.
                self._admit(request, codes.get(request.request_id, SubmitCode.KNOWN))

    async def _submit(self, requests: Sequence[PendingRequest]) -> dict[str, SubmitCode]:
        """Returns what became of the requests, by id; repeats the call under the same ids.

        A request's patience counts from the last submit that succeeded if it came before that: a
        queue of slow bodies is no outage. Raises QueueMemoryFull or StoreUnavailable; Redis may
        have heard some of it, or may hear it late, which is to be taken back.
        """
        patience = self._patience
        cause: Exception | None = None
        begin = max(self._moved_at, min([request.entered_at for request in requests]))
        end = max(self._loop.time() + 2 * patience.retry_s, begin + patience.submit_s)
        bodies_s = sum([len(request.wire.body) for request in requests]) / patience.bytes_per_s
        try:
            async with asyncio.timeout_at(end + bodies_s) as limit:
                while True:
                    try:
                        return await self._submit_waiting(requests)
                    except OutOfMemoryError as error:
                        raise refusal(SubmitCode.NO_MEMORY, self._key, 1.0) from error
                    except AWAY as error:
                        cause = error
                        # Before Python 3.12, an error at that moment may win over the time-out.
                        if limit.expired():
                            raise TimeoutError from error
                        limit.reschedule(end)  # a body whose submit failed is not on its way
                        await asyncio.sleep(patience.retry_s)
        except TimeoutError:
            raise store_unavailable(cause) from cause
        finally:
            cause = None  # it leads back here, and only the collector would free the bodies

    async def _submit_waiting(self, requests: Sequence[PendingRequest]) -> dict[str, SubmitCode]:
        now = self._loop.time()
        submissions = [
            Submission(
                request.request_id,
                max(1, int((request.deadline - now) * 1000)),
                self._carried(request) if request.wire.body else request.wire,
                None if request.is_resubmitted else int((now - request.entered_at) * 1e6),
            )
            for request in requests
            if not request.is_over
        ]
        codes = await self._queue.submit(submissions) if submissions else []
        return {item.request_id: code for item, code in zip(submissions, codes, strict=True)}

    def _carried(self, request: PendingRequest) -> Wire:
        """Returns what Redis gets of the request: all, or where on this host its body is."""
        wire, self._has_large_bodies = request.wire, True
        if self._shares_memory and (held := self._memory.arena.hold(wire.body)) is not None:
            body, place = held
            if body is not wire.body:  # it came in another place
                request.wire = wire._replace(body=body)
            self._memory.requests["arena"] += 1
            return Wire(b"@" + place + wire.without_body())
        self._memory.requests["redis"] += 1
        return wire

    def _give_up(self, requests: Sequence[PendingRequest], error: errors.ServeError) -> None:
        """Tells the clients at once; no request is run later, and none leaves a body behind."""
        if isinstance(error, errors.StoreUnavailable):  # a Redis that is full is not away
            self._outage.note("submit", error)
            self._was_away_at = self._loop.time()
        for request in requests:
            self._fail(request, error)
            self._cancel(request, error)

    def _admit(self, request: PendingRequest, code: SubmitCode) -> None:
        if code is SubmitCode.QUEUED or code is SubmitCode.KNOWN:
            request.is_queued = True
            self._queued_at = self._moved_at
            if request.is_given_up:  # while this submit was on its way
                self._cancel(request, ClientLeft())
            return
        now = self._loop.time()
        if code is SubmitCode.NO_VERSION:
            # Redis may have been emptied although no connection was lost. The node that restores
            # the registry need not be one that has workers.
            self._was_away_at = now
        if now - request.entered_at < self._patience_s(request, code):
            self._loop.call_later(2 * self._patience.retry_s, self._submit_soon, request)
        else:
            # A full queue will have emptied when those that wait now have been answered.
            retry_after_s = self._drain_rate.retry_after_s(len(self._waiting), now)
            self._fail(request, refusal(code, self._key, retry_after_s))

    def _patience_s(self, request: PendingRequest, code: SubmitCode) -> float:
        """Returns for how long from its arrival a request is sent again in spite of this refusal.

        Redis may only have restarted, and the registry is being restored, or workers have not
        beaten yet. Or its clock has stepped, which makes all beats look old.
        """
        if code is SubmitCode.NO_VERSION:
            return self._patience.version_s
        if code not in (SubmitCode.NO_WORKER, SubmitCode.NO_BEAT):
            return 0.0
        now_s, back_s = self._loop.time(), self._patience.back_s
        # A model that had to be looked up has no channel yet, but other calls noticed the outage.
        is_back = now_s - self._was_away_at < back_s or self._outage.was_within(back_s)
        if request.is_resubmitted or is_back:
            return self._patience.version_s
        # All workers are silent at once, though by our own clock one of them lived a moment ago.
        has_stepped = code is SubmitCode.NO_BEAT and now_s - self._queued_at < back_s
        return self._patience.beat_s if has_stepped else 0.0

    # --- receive

    async def _read(self) -> None:
        delivered: list[str] = []
        # A request may come while the last replies are being discarded.
        while self._waiting or delivered:
            discarded, delivered = delivered, []
            try:
                if self._waiting:
                    delivered = self._deliver(await self._queue.receive(discarded))
                    self._outage.over("receive")
                else:
                    await self._queue.discard(discarded)
            except AWAY as error:
                # Entries may have been popped into the broken connection; the audit finds out.
                if isinstance(error, REFUSED):
                    # Replies come late then, by the audit, and no other call would say why.
                    self._outage.note("receive", error)
                self._was_away_at = self._loop.time()
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
                reply = decode_reply(request_id, value, self._memory)
                receiver = self._open_stream(request) if reply.chunks else request
                self._waiting.pop(request_id, None)
                receiver.resolve(reply)
                delivered.append(request_id)
            except (BodyElsewhere, AnswerGone) as error:
                self._shares_memory = False  # until the next look: that worker is new, or has died
                # What was run, and whose answer has gone, is submitted again once.
                is_again = isinstance(error, AnswerGone) and request.is_resubmitted
                self._resubmit(request, math.inf if is_again else 0.0)
                delivered.append(request_id)
            except LargeReply as reply_elsewhere:
                # The reply key stays until the reply was read, so that the audit does not miss it.
                self._large.setdefault(request_id, reply_elsewhere.attempt)
                self._start(self._fetch_large)
            except ProtocolError as error:
                log.error("unreadable reply request=%s: %s", request_id, error)
                self._fail(request, errors.InternalError("The worker's answer cannot be read."))
        self.used_at = self._loop.time()
        self._drain_rate.count(self.used_at, len(delivered))
        return delivered

    async def _fetch_large(self) -> None:
        """Fetches replies too large for the replies list, a few at a time, and each once only.

        Copies on a slow line would delay each other. The audit names again what did not come.
        """
        at_once = LARGE_AT_ONCE
        read: dict[str, str] = {}  # and delivered: deleted together with the next fetch
        while self._large or read:
            due = dict(islice(self._large.items(), at_once))
            wanted = {name: due[name] for name in due if name in self._waiting}
            values: Mapping[str, memoryview | None] = {}
            try:
                if wanted or read:
                    values = await self._queue.fetch_large(wanted, read)
            except AWAY:
                if at_once == 1:
                    self._large.clear()
                    return
                at_once = 1  # together they may have been too large for the time of one call
                continue
            for request_id in due:
                del self._large[request_id]
            self._memory.answers["redis"] += len(values)
            self._deliver(values)
            read = due

    def _look_for_chunks(self, request: PendingRequest) -> None:
        async def look() -> None:
            with contextlib.suppress(*AWAY):
                if await self._queue.read_chunks(request.request_id, 0):
                    self._open_stream(request)

        if isinstance(request, ReplyStream):
            request.poke()
        else:
            self._looks.start(look())

    def _open_stream(self, request: PendingRequest) -> PendingRequest:
        """Gives the client a stream; returns the pending request for the rest of the answer."""
        if request.is_over or request.is_stream:
            return self._waiting.get(request.request_id, request)
        stream = ReplyStream(request, self._queue, self._patience)
        self._watch(stream)
        self._waiting[stream.request_id] = stream
        request.resolve(stream)
        return stream

    # --- deadlines, and clients that leave

    def _watch(self, request: PendingRequest) -> None:
        """Sets the request's deadline, and one timer for the earliest deadline of all."""
        request.leave_channel = self.leave
        request.entered_at = now = self._loop.time()
        request.deadline = deadline = now + request.timeout_s
        if deadline < self._looks_at:
            self._look_at(deadline)

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now, self._looks_at = self._loop.time(), math.inf
        text = "The request's deadline passed before its answer was there."
        for request in [one for one in self._waiting.values() if one.deadline <= now]:
            if request.request_id not in self._failing:
                self._cancel(request, errors.DeadlineExceeded(text))
        if ahead := [one.deadline for one in self._waiting.values() if one.deadline > now]:
            self._look_at(max(min(ahead), now + LOOK_AGAIN_S))

    def _cancel(self, request: PendingRequest, error: Exception) -> None:
        """Cancels the request and fails it, soon, unless a reply comes first and is delivered."""
        self._cancelled[request.request_id] = request.deadline
        self._failing[request.request_id] = request, error
        self._loop.call_later(self._patience.cancel_s, self._fail_cancelled, request.request_id)
        self._start(self._cancel_all)

    def _fail_cancelled(self, request_id: str) -> None:
        if (failing := self._failing.pop(request_id, None)) is not None:
            self._fail(*failing)

    async def _cancel_all(self) -> None:
        """Makes one call at a time: when hundreds of clients leave, a call for each is too slow.

        What Redis did not hear is said again until the request's deadline, as it may come back.
        """
        while self._cancelled:
            await asyncio.sleep(0)  # those that leave in the same turn of the loop go along
            deadlines = dict(islice(self._cancelled.items(), CANCEL_AT_ONCE))
            for request_id in deadlines:
                del self._cancelled[request_id]
            try:
                codes = await self._queue.cancel([*deadlines])
                await self._fetch_replied(dict(zip(deadlines, codes, strict=True)))
                is_heard = True
            except AWAY:
                now, is_heard = self._loop.time(), False
                self._cancelled |= {name: end for name, end in deadlines.items() if end > now}
            for request_id in deadlines:
                self._fail_cancelled(request_id)
            if not is_heard:
                await asyncio.sleep(CANCEL_AGAIN_S)

    async def _fetch_replied(self, codes: Mapping[str, CancelCode | AuditCode]) -> None:
        replied = (CancelCode.REPLIED, AuditCode.REPLIED)
        if request_ids := [name for name, code in codes.items() if code in replied]:
            self._deliver(await self._queue.fetch(request_ids))

    async def _audit(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._patience.audit_s)
            due = [name for name, request in self._waiting.items() if request.is_queued]
            with contextlib.suppress(*AWAY):
                codes = await self._queue.audit(due)
                if self._has_large_bodies:
                    self._has_large_bodies = False
                    workers = await self._queue.worker_ids()
                    self._shares_memory = self._memory.arena.is_shared_by(workers)
                await self._heal(dict(zip(due, codes, strict=True)))

    async def _heal(self, codes: Mapping[str, AuditCode]) -> None:
        await self._fetch_replied(codes)
        pairs: list[str] = []
        for request_id, code in codes.items():
            if (request := self._waiting.get(request_id)) is None:
                continue
            if code is AuditCode.LOST:
                if self._resubmit(request, self._patience.resubmit_share):
                    pairs.append(f"{request_id}:{request.request_id}")
            elif code is AuditCode.STREAMED:
                self._look_for_chunks(request)
            elif code is AuditCode.ABANDONED:
                self._cancel(request, queue_error("unregistered"))
        if pairs:
            self._resubmitted[self._key] += len(pairs)
            line = "resubmitted model=%s version=%s requests=%d old:new=%s"
            log.warning(line, *self._key, len(pairs), ",".join(pairs[:MOST_IN_LOG]))

    def _resubmit(self, request: PendingRequest, least_share: float = 0.0) -> bool:
        """Submits the request again, under a new id to which no old reply can come.

        Fails it and returns false if less than this share of its time is left, or if its client
        has the first pieces of a stream, which another run would send again.
        """
        now = self._loop.time()
        if request.is_stream or request.deadline - now < least_share * request.timeout_s:
            self._fail(request, queue_lost())
            return False
        del self._waiting[request.request_id]
        request.request_id = fresh_request_id()
        request.entered_at = now
        request.is_queued = False
        request.is_resubmitted = True
        self._submit_soon(request)
        return True
