"""One ingress's traffic with one model version: submits coalesced, replies matched by id.

A channel has three small loops that run only while requests wait: `_flush` submits those that have
gathered since its last round trip in one script call; `_read` blocks on this ingress's replies
list; `_audit` beats and asks, twice a second, where the requests are: an entry of the list or the
whole queue may be lost. A channel without waiting requests costs nothing.

The ingress that waits is what makes a request durable: it holds the body, and submits again what
Redis lost.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import islice

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.models.spec import VersionKey
from batching.policy import DrainRate
from batching.protocol import NO_WIRE, ProtocolError, Reply, Wire, fresh_request_id
from batching.store.arena import NO_MEMORY, IngressMemory
from batching.store.background_tasks import BackgroundTasks, end_tasks, keep_going
from batching.store.ingress_queue import (
    USUAL_PATIENCE,
    AuditCode,
    CancelCode,
    IngressQueue,
    Patience,
    Submission,
    SubmitCode,
    refusal,
)
from batching.store.pending_request import ClientLeft, PendingRequest, ReplyStream
from batching.store.records import (
    AnswerGone,
    BodyElsewhere,
    LargeReply,
    decode_reply,
    error_reply,
    queue_error,
)
from batching.store.redis_errors import (
    AWAY,
    REFUSED,
    OutageLog,
    memory_full,
    queue_lost,
    store_unavailable,
)

log = logging.getLogger(__name__)

SUBMIT_AT_ONCE = 256
MOST_IN_LOG = 8
CANCEL_AT_ONCE = 256
# No claim gets a request that was given up more than 0.3 s before, not even after an outage.
CANCEL_AGAIN_S = 0.2
# Deadlines that pass within this time share one look.
LOOK_AGAIN_S = 0.01
LARGE_AT_ONCE = 8  # replies of megabytes each must not come in one piece

_Body = Callable[[], Coroutine[None, None, None]]
_Leaving = tuple[str, float, PendingRequest | None, Exception | None]


def take_some(pending: list[PendingRequest], most_bytes: int) -> list[PendingRequest]:
    """Takes as many from the front as one submit may bring; returns those that still wait."""
    count = size_bytes = 0
    for request in pending[:SUBMIT_AT_ONCE]:
        size_bytes += len(request.wire.head) + len(request.wire.body)
        if count and size_bytes > most_bytes:
            break
        count += 1
    taken = pending[:count]
    del pending[:count]
    return [request for request in taken if not request.is_over]


class Channel:
    """Submits for one version and waits for the replies."""

    def __init__(
        self,
        key: VersionKey,
        queue: IngressQueue,
        outage: OutageLog,
        patience: Patience = USUAL_PATIENCE,
        memory: IngressMemory = NO_MEMORY,
    ) -> None:
        self.resubmitted = 0
        self._key = key
        self._patience = patience
        self._queue = queue
        self._memory = memory
        self._has_large_bodies = False  # since the last look at the workers
        self._shares_memory = False  # with all of them, as far as is known
        self._outage = outage
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, PendingRequest] = {}
        self._pending: list[PendingRequest] = []
        self._leaving: list[_Leaving] = []
        self._large: dict[str, str] = {}  # request id -> attempt
        self._drain_rate = DrainRate()
        # When a client last left, a submit succeeded, one queued a request, Redis was away.
        self._used_at = self._loop.time()
        self._moved_at = 0.0
        self._was_away_at = self._queued_at = -patience.back_s
        self._looks_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._background = BackgroundTasks()
        self._is_cancelling = self._is_fetching = False
        self._loops: dict[_Body, asyncio.Task[None] | None]
        self._loops = dict.fromkeys((self._flush, self._read, self._audit))
        self._leave = self.leave

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Returns whether no client waits and no call is under way."""
        is_busy = any(task is not None and not task.done() for task in self._loops.values())
        return not (self._waiting or is_busy or self._background.is_busy)

    @property
    def unused_s(self) -> float:
        return self._loop.time() - self._used_at  # since the last client left

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
        await end_tasks(filter(None, self._loops.values()))
        await self._background.close()
        await self._queue.close()

    def _submit_soon(self, request: PendingRequest) -> None:
        """Submits the request, for the first time or once more."""
        # A loop goes on while it has something to do, so that most requests find all of them going.
        are_all_going = bool(self._waiting and self._pending)
        self._waiting[request.request_id] = request
        self._pending.append(request)
        if not are_all_going:
            for body, task in self._loops.items():
                if task is None or task.done():
                    self._loops[body] = self._loop.create_task(self._run(body))

    async def _run(self, body: _Body) -> None:
        try:
            await body()
        except Exception as error:
            await keep_going(body, "model={} version={}".format(*self._key), failure=error)

    def _fail(self, request: PendingRequest, error: Exception) -> None:
        """Ends the request with this error, unless it has an outcome already."""
        if not request.is_over:
            self._used_at = self._loop.time()
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
            except Exception as error:
                self._give_up(requests, error)
                if not isinstance(error, errors.ServeError):
                    raise
                continue
            self._outage.over("submit")
            self._moved_at = self._loop.time()
            for request, code in zip(requests, codes, strict=True):
                self._admit(request, code)

    async def _submit(self, requests: Sequence[PendingRequest]) -> list[SubmitCode]:
        """Returns what became of each request; repeats the call under the same ids.

        A request's patience counts from the last submit that succeeded if it came before that: a
        queue of slow bodies is no outage.

        Raises:
            QueueMemoryFull, StoreUnavailable: it was given up. Redis may have heard some of it, or
                may hear it late; that is to be taken back.
        """
        patience, now = self._patience, self._loop.time
        cause: Exception | None = None
        begin = max(self._moved_at, min([request.entered_at for request in requests]))
        end = max(now() + 2 * patience.retry_s, begin + patience.submit_s)
        bodies_s = sum([len(request.wire.body) for request in requests]) / patience.bytes_per_s
        try:
            async with asyncio.timeout_at(end + bodies_s) as limit:
                while True:
                    try:
                        return await self._submit_waiting(requests)
                    except OutOfMemoryError as error:
                        raise memory_full() from error
                    except AWAY as error:
                        cause = error
                        if limit.expired():
                            # An error that came at the same moment may win over the cancellation
                            # (asyncio.wait_for before Python 3.12).
                            raise TimeoutError from error
                        limit.reschedule(end)  # a body whose submit failed is not on its way
                        await asyncio.sleep(patience.retry_s)
        except TimeoutError:
            raise store_unavailable(cause) from cause
        finally:
            cause = None  # it leads back here, and only the collector would free the bodies

    async def _submit_waiting(self, requests: Sequence[PendingRequest]) -> list[SubmitCode]:
        # Others were answered meanwhile, or have left: an earlier try has queued them.
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
        if len(codes) == len(requests):
            return codes
        code_of = {item.request_id: code for item, code in zip(submissions, codes, strict=True)}
        return [code_of.get(request.request_id, SubmitCode.KNOWN) for request in requests]

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

    def _give_up(self, requests: Sequence[PendingRequest], error: Exception) -> None:
        """Tells the clients at once; no request is run later, and none leaves a body behind."""
        if isinstance(error, errors.StoreUnavailable):  # a Redis that is full is not away
            self._outage.note("submit", error)
            self._was_away_at = self._loop.time()
        if not isinstance(error, errors.ServeError):
            error = errors.InternalError("The request was not passed on.")
        for request in requests:
            self._fail(request, error)
            request.wire = NO_WIRE
            self._cancel(request, error)

    def _admit(self, request: PendingRequest, code: SubmitCode) -> None:
        if code is SubmitCode.QUEUED or code is SubmitCode.KNOWN:
            request.is_queued = True
            self._queued_at = self._moved_at
            if request.is_given_up:
                # While this submit was on its way, so that there was nothing to cancel yet.
                self._cancel(request, ClientLeft())
            return
        now = self._loop.time()
        if code is SubmitCode.NO_VERSION:
            # Redis may have been emptied although no connection was lost. The node that restores
            # the registry need not be one that has workers.
            self._was_away_at = now
        if now - request.entered_at < self._patience_s(request, code):
            self._loop.call_later(2 * self._patience.retry_s, self._submit_again, request)
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
        now_s = self._loop.time()
        back_s = self._patience.back_s
        # A model that had to be looked up has no channel yet, but other calls noticed the outage.
        is_back = now_s - self._was_away_at < back_s or self._outage.was_within(back_s)
        if request.is_resubmitted or is_back:
            return self._patience.version_s
        # All workers are silent at once, though by our own clock one of them lived a moment ago.
        has_stepped = code is SubmitCode.NO_BEAT and now_s - self._queued_at < back_s
        return self._patience.beat_s if has_stepped else 0.0

    def _submit_again(self, request: PendingRequest) -> None:
        if not request.is_over:
            self._submit_soon(request)

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
                self._was_away_at = self._loop.time()
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
                self._resolve(request, decode_reply(request_id, value, self._memory))
                delivered.append(request_id)
            except (BodyElsewhere, AnswerGone) as error:
                self._run_again(request, error)
                delivered.append(request_id)
            except LargeReply as reply_elsewhere:
                # The reply key stays until the reply was read, so that the audit does not miss it.
                self._large.setdefault(request_id, reply_elsewhere.attempt)
                if not self._is_fetching:
                    self._is_fetching = True
                    self._background.start(self._fetch_large())
            except ProtocolError as error:
                log.error("unreadable reply request=%s: %s", request_id, error)
                unreadable = errors.InternalError("The worker's answer cannot be read.")
                del self._waiting[request_id]
                request.resolve(error_reply(unreadable))
        self._used_at = self._loop.time()
        self._drain_rate.count(self._used_at, len(delivered))
        return delivered

    def _resolve(self, request: PendingRequest, reply: Reply) -> None:
        if reply.chunks and not request.is_stream:
            request = self._open_stream(request)
        self._waiting.pop(request.request_id, None)
        request.resolve(reply)

    def _run_again(self, request: PendingRequest, error: BodyElsewhere | AnswerGone) -> None:
        """Submits again what was not run, and once what was run but whose answer has gone."""
        self._shares_memory = False  # until the next look: that worker is new, or has died
        is_again = isinstance(error, AnswerGone) and request.is_resubmitted
        if is_again or request.is_stream:
            self._fail(request, queue_lost())
        else:
            self._resubmit(request)

    async def _fetch_large(self) -> None:
        """Fetches replies too large for the replies list, a few at a time.

        The audit names again what could not be fetched. Each is on its way once only: copies that
        share a slow line delay each other until none arrives in time.
        """
        at_once = LARGE_AT_ONCE
        read: dict[str, str] = {}  # and delivered: deleted together with the next fetch
        try:
            while self._large or read:
                due = dict(islice(self._large.items(), at_once))
                wanted = {name: due[name] for name in due if name in self._waiting}
                values: Mapping[str, memoryview | None] = {}
                try:
                    if wanted or read:
                        values = await self._queue.fetch_large(wanted, read)
                except AWAY:
                    if at_once == 1:
                        return
                    at_once = 1  # together they may have been too large for the time of one call
                    continue
                for request_id in due:
                    del self._large[request_id]
                self._memory.answers["redis"] += len(values)
                self._deliver(values)
                read = due
        finally:
            self._large.clear()
            self._is_fetching = False

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

    # --- deadlines, and clients that leave

    def _watch(self, request: PendingRequest) -> None:
        """Sets the request's deadline, and one timer for the earliest deadline of all."""
        request.leave_channel = self._leave
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
        now = self._loop.time()
        earliest, late = math.inf, []
        for request in self._waiting.values():
            if request.deadline > now:
                earliest = min(earliest, request.deadline)
            elif not request.is_late:
                request.is_late = True
                late.append(request)
        self._looks_at = math.inf
        if earliest < math.inf:
            self._look_at(max(earliest, now + LOOK_AGAIN_S))
        text = "The request's deadline passed before its answer was there."
        for request in late:
            self._cancel(request, errors.DeadlineExceeded(text))

    def _cancel(self, request: PendingRequest, error: Exception) -> None:
        """Cancels the request and fails it, soon, unless a reply comes first and is delivered."""
        self._leaving.append((request.request_id, request.deadline, request, error))
        self._loop.call_later(self._patience.cancel_s, self._fail, request, error)
        if not self._is_cancelling:
            self._is_cancelling = True
            self._background.start(self._cancel_all())

    async def _cancel_all(self) -> None:
        """Makes one call at a time: when hundreds of clients leave, a call for each is too slow.

        It goes on after the clients have been told, as the next call would be as late. What Redis
        did not hear is said again until the request's deadline: once it is back, what waits is run.
        """
        try:
            while self._leaving:
                await asyncio.sleep(0)  # those that leave in the same turn of the loop go along
                leaving = self._leaving[:CANCEL_AT_ONCE]
                del self._leaving[:CANCEL_AT_ONCE]
                is_heard = await self._try_to_cancel([request_id for request_id, *_ in leaving])
                # An outage may be long, and an error's traceback holds the request's body.
                unheard: list[_Leaving] = []
                for request_id, deadline, request, error in leaving:
                    unheard.append((request_id, deadline, None, None))
                    if request is not None and error is not None:
                        self._fail(request, error)
                if not is_heard:
                    now = self._loop.time()
                    self._leaving += [told for told in unheard if told[1] > now]
                    leaving.clear()
                    request = error = None
                    await asyncio.sleep(CANCEL_AGAIN_S)
        finally:
            self._is_cancelling = False

    async def _try_to_cancel(self, request_ids: Sequence[str]) -> bool:
        """Returns whether Redis was heard."""
        try:
            codes = zip(request_ids, await self._queue.cancel(request_ids), strict=True)
            replied = [request_id for request_id, code in codes if code is CancelCode.REPLIED]
            if replied:
                self._deliver(await self._queue.fetch(replied))
        except AWAY:
            return False
        return True

    # --- audit

    async def _audit(self) -> None:
        while self._waiting:
            asked = {name: request for name, request in self._waiting.items() if request.is_queued}
            await asyncio.sleep(self._patience.audit_s)
            due = [
                request_id
                for request_id, request in asked.items()
                if not request.is_over and request.request_id == request_id
            ]
            with contextlib.suppress(*AWAY):
                codes = await self._queue.audit(due)
                if self._has_large_bodies:
                    self._has_large_bodies = False
                    workers = await self._queue.worker_ids()
                    self._shares_memory = self._memory.arena.is_shared_by(workers)
                await self._heal(dict(zip(due, codes, strict=True)))

    async def _heal(self, codes: dict[str, AuditCode]) -> None:
        replied = [request_id for request_id, code in codes.items() if code is AuditCode.REPLIED]
        if replied:
            self._deliver(await self._queue.fetch(replied))
        lost: list[PendingRequest] = []
        for request_id, code in codes.items():
            request = self._waiting.get(request_id)
            if request is None or request.is_over:
                continue
            if code is AuditCode.LOST:
                lost.append(request)
            elif code is AuditCode.STREAMED:
                self._look_for_chunks(request)
            elif code is AuditCode.ABANDONED:
                self._cancel(request, queue_error("unregistered"))
        self._resubmit_lost(lost)

    def _resubmit_lost(self, lost: Sequence[PendingRequest]) -> None:
        now, pairs = self._loop.time(), []
        for request in lost:
            is_late = request.deadline - now < self._patience.resubmit_share * request.timeout_s
            # The client has the first pieces of a stream: another run would send them again.
            if is_late or request.is_stream:
                self._fail(request, queue_lost())
                continue
            old_id = request.request_id
            self._resubmit(request)
            pairs.append(f"{old_id}:{request.request_id}")
        if pairs:
            self.resubmitted += len(pairs)
            log.warning(
                "resubmitted model=%s version=%s requests=%d old:new=%s",
                *(*self._key, len(pairs), ",".join(pairs[:MOST_IN_LOG])),
            )

    def _resubmit(self, request: PendingRequest) -> None:
        """Submits the request again, under a new id to which no old reply can come."""
        del self._waiting[request.request_id]
        request.request_id = fresh_request_id()
        request.entered_at = self._loop.time()
        request.is_queued = False
        request.is_resubmitted = True
        self._submit_soon(request)
