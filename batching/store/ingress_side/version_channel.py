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
from collections.abc import Callable, Coroutine, Mapping
from typing import cast

from batching import errors
from batching.drain_rate import DrainRate
from batching.models.spec import VersionKey
from batching.protocol import NO_WIRE, ProtocolError, Reply, Wire
from batching.request_ids import fresh_request_id
from batching.store.background_tasks import BackgroundTasks, end_tasks, keep_going
from batching.store.ingress_side.canceller import Canceller
from batching.store.ingress_side.ingress_queue import AuditCode, IngressQueue, SubmitCode
from batching.store.ingress_side.large_replies import LargeReplyFetcher
from batching.store.ingress_side.patience import USUAL_PATIENCE, Patience
from batching.store.ingress_side.pending_request import ClientGone, ClientLeft, PendingRequest
from batching.store.ingress_side.reply_stream import ReplyStream
from batching.store.ingress_side.submitting import refusal, submit, take_some
from batching.store.outage_log import OutageLog
from batching.store.redis_errors import AWAY, REFUSED
from batching.store.replies import LargeReply, decode_reply, error_reply, queue_error
from batching.store.unavailable import queue_lost

log = logging.getLogger(__name__)

MOST_IN_LOG = 8

_Body = Callable[[], Coroutine[None, None, None]]


class VersionChannel:
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
        self._pending: list[PendingRequest] = []
        self._waiting: dict[str, PendingRequest] = {}
        self._loops: dict[_Body, asyncio.Task[None] | None]
        self._loops = dict.fromkeys((self._flush, self._read, self._audit))
        self._drain_rate = DrainRate()
        self._was_away_at = -self._patience.back_s
        self._moved_at = 0.0
        self._queued_at = -self._patience.back_s
        self._used_at = self._loop.time()
        self._background = BackgroundTasks()
        self._canceller = Canceller(queue, self._deliver, patience)
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

    async def ask(
        self, request_id: str, wire: Wire, timeout_s: float, client_left: ClientGone | None
    ) -> Reply | ReplyStream:
        """Returns the one reply, as a stream if its first piece comes before its end.

        Raises:
            ServeError: it was refused, or its deadline passed.
            ClientLeft: `client_left` finished first.
        """
        loop = self._loop
        request = PendingRequest(request_id, wire, timeout_s, loop.time(), loop.create_future())
        self._canceller.watch(request, client_left)
        self._enter(request)
        try:
            reply = await request.reply
            self._drain_rate.count(loop.time())
            return cast("Reply | ReplyStream", reply)
        finally:
            self._used_at = loop.time()
            self._canceller.unwatch(request)
            request.leave()
            if self._waiting.get(request.request_id) is request:
                del self._waiting[request.request_id]
            if request.reply.cancelled():
                self._canceller.cancel(request, ClientLeft())

    async def close(self) -> None:
        """Ends the loops and refuses the requests that still wait."""
        for request in list(self._waiting.values()):
            request.fail(errors.Draining("The server is shutting down.", retry_after_s=1.0))
        await end_tasks(filter(None, self._loops.values()))
        await self._background.close()
        await self._large_replies.close()
        await self._canceller.close()
        await self._queue.close()

    def _enter(self, request: PendingRequest) -> None:
        self._waiting[request.request_id] = request
        self._pending.append(request)
        for body, task in self._loops.items():
            if task is None or task.done():
                going = keep_going(body, "model={} version={}".format(*self._key))
                self._loops[body] = self._loop.create_task(going)

    # --- submit

    async def _flush(self) -> None:
        while self._pending:
            await asyncio.sleep(0)  # requests that arrive in the same turn of the loop go along
            requests = take_some(self._pending, self._patience.submit_bytes)
            if not requests:
                continue
            try:
                codes = await submit(self._queue, requests, self._moved_at, self._patience)
            except errors.ServeError as error:
                for request in requests:
                    self._give_up(request, error)
                continue
            except Exception:
                for request in requests:
                    self._give_up(request, errors.InternalError("The request was not passed on."))
                raise
            self._moved_at = self._loop.time()
            for request, code in zip(requests, codes, strict=True):
                self._admit(request, code)

    def _give_up(self, request: PendingRequest, error: errors.ServeError) -> None:
        """Tells the client at once; the request is not run later, and leaves no body behind."""
        if isinstance(error, errors.StoreUnavailable):  # a Redis that is full is not away
            self._was_away_at = self._loop.time()
        request.fail(error)
        request.wire = NO_WIRE
        self._canceller.cancel(request, error)

    def _admit(self, request: PendingRequest, code: SubmitCode) -> None:
        if code is SubmitCode.QUEUED or code is SubmitCode.KNOWN:
            request.is_queued = True
            self._queued_at = self._moved_at
            if request.is_given_up:
                # While this submit was on its way, so that there was nothing to cancel yet.
                self._canceller.cancel(request, ClientLeft())
            return
        if code is SubmitCode.NO_VERSION:
            # Redis may have been emptied although no connection was lost. The node that restores
            # the registry need not be one that has workers.
            self._was_away_at = self._loop.time()
        now_s = self._loop.time()
        if now_s - request.entered_at < self._patience_s(request, code):
            self._loop.call_later(2 * self._patience.retry_s, self._again, request)
        else:
            retry_after_s = self._drain_rate.retry_after_s(len(self._waiting), now_s)
            request.fail(refusal(code, self._key, retry_after_s))

    def _patience_s(self, request: PendingRequest, code: SubmitCode) -> float:
        """Returns for how long from its arrival a request is sent again in spite of this refusal.

        Redis may only have restarted, and the registry is being restored, or workers have not
        beaten yet. Or its clock has stepped, which makes all beats look old.
        """
        if code is SubmitCode.NO_VERSION:
            return self._patience.version_s
        if code not in (SubmitCode.NO_WORKER, SubmitCode.NO_BEAT, SubmitCode.NO_TICKET):
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

    def _again(self, request: PendingRequest) -> None:
        if not request.reply.done():
            self._enter(request)

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

    def _deliver(self, values: Mapping[str, bytes | None]) -> list[str]:
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
                if reply.chunks and request.stream is None:
                    request = self._open_stream(request)
                request.resolve(reply)
                delivered.append(request_id)
            except LargeReply as reply_elsewhere:
                # The reply key stays until the reply was read, so that the audit does not miss it.
                self._large_replies.add(request_id, reply_elsewhere.attempt)
            except ProtocolError as error:
                log.error("unreadable reply request=%s: %s", request_id, error)
                request.resolve(
                    error_reply(errors.InternalError("The worker's answer cannot be read."))
                )
        return delivered

    # --- answers in pieces

    def _look_for_chunks(self, request: PendingRequest) -> None:
        async def look() -> None:
            with contextlib.suppress(*AWAY):
                if await self._queue.read_chunks(request.request_id, 0):
                    self._open_stream(request)

        if request.stream is not None:
            request.stream.poke()
        elif not request.reply.done():
            self._background.start(look())

    def _open_stream(self, request: PendingRequest) -> PendingRequest:
        """Gives the client a stream; returns the pending request for the rest of the answer."""
        current = self._waiting.get(request.request_id, request)
        if request.reply.done():
            return current
        timeout_s, reply = request.timeout_s, self._loop.create_future()
        rest = PendingRequest(request.request_id, NO_WIRE, timeout_s, self._loop.time(), reply)
        rest.is_queued = True
        self._canceller.watch(rest, None)
        rest.stream = ReplyStream(rest, self._queue, self._leave, self._patience)
        self._waiting[rest.request_id] = rest
        request.resolve(rest.stream)
        return rest

    def _leave(self, rest: PendingRequest) -> None:
        """Gives up the rest of a stream whose reader is done or has gone."""
        self._canceller.unwatch(rest)
        rest.leave()
        self._waiting.pop(rest.request_id, None)
        self._canceller.give_up(rest, ClientLeft())

    # --- audit

    async def _audit(self) -> None:
        while self._waiting:
            asked = {one.request_id: one for one in self._waiting.values() if one.is_queued}
            await asyncio.sleep(self._patience.audit_s)
            due = [
                request_id
                for request_id, request in asked.items()
                if not request.reply.done() and request.request_id == request_id
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
            if request is None or request.reply.done():
                continue
            if code is AuditCode.LOST:
                lost.append((request_id, request))
            elif code is AuditCode.STREAMED:
                self._look_for_chunks(request)
            elif code is AuditCode.ABANDONED:
                self._canceller.give_up(request, queue_error("unregistered"))
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
        if is_late or request.stream is not None:
            request.fail(queue_lost())
            return False
        del self._waiting[request.request_id]
        request.enter_anew(fresh_request_id(), self._loop.time())
        self._enter(request)
        return True
