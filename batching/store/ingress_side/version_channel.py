"""One ingress's traffic with one model version: submits coalesced, replies matched by id.

A channel has three small loops that run only while somebody waits: `_flush` submits what has
gathered
since its last round trip in one script call; `_read` blocks on this ingress's doorbell and fetches
the replies it names; `_audit` beats and looks, twice a second, for requests whose doorbell or whose
whole queue was lost. A channel without waiting requests costs nothing.

The waiting ingress is the durability: it still holds the body, and submits again what Redis lost.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import cast

from batching import errors
from batching.drain_rate import DrainRate
from batching.models.spec import VersionKey
from batching.protocol import ProtocolError, Reply
from batching.request_ids import fresh_request_id
from batching.store.background_tasks import BackgroundTasks, end_tasks, keep_going
from batching.store.ingress_side.canceller import Canceller
from batching.store.ingress_side.ingress_queue import AuditCode, IngressQueue, SubmitCode
from batching.store.ingress_side.large_replies import LargeReplyFetcher
from batching.store.ingress_side.pending_request import ClientGone, ClientLeft, PendingRequest
from batching.store.ingress_side.refusals import refusal
from batching.store.ingress_side.reply_stream import ReplyStream
from batching.store.ingress_side.submitting import RETRY_S, submit_waiters, take_some
from batching.store.outage_log import OutageLog
from batching.store.redis_errors import AWAY, REFUSED
from batching.store.replies import LargeReply, decode_reply, error_reply, queue_error
from batching.store.unavailable import queue_lost

log = logging.getLogger(__name__)

MOST_IN_LOG = 8


@dataclass(frozen=True, slots=True)
class Patience:
    """Holds the time limits of a channel.

    `back_s`: Redis counts as just back for this long. `version_s`: a refused submit is repeated for
    this long, as a node restores an emptied registry within a beat. `beat_s`: a worker that lives
    has beaten by then. `audit_s`: losses are noticed within twice this. `resubmit_share`: of the
    deadline must be left for a lost request to be submitted again.
    """

    back_s: float = 3.0
    version_s: float = 1.5
    beat_s: float = 1.0
    audit_s: float = 0.5
    resubmit_share: float = 0.25


USUAL_PATIENCE = Patience()

_Body = Callable[[], Coroutine[None, None, None]]


class VersionChannel:
    """Submits for one version and waits for the replies."""

    def __init__(
        self,
        key: VersionKey,
        verbs: IngressQueue,
        outage: OutageLog,
        patience: Patience = USUAL_PATIENCE,
    ) -> None:
        self.resubmitted = 0
        self._key = key
        self._patience = patience
        self._verbs = verbs
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
        self._canceller = Canceller(verbs, self._deliver)
        self._large_replies = LargeReplyFetcher(
            verbs, lambda request_id: request_id in self._waiting, self._deliver
        )

    @property
    def waiting(self) -> int:
        """Returns how many clients wait."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Returns whether nobody waits and nothing is under way."""
        is_busy = any(task is not None and not task.done() for task in self._loops.values())
        others = (self._background, self._large_replies, self._canceller)
        return not (self._waiting or is_busy or any(other.is_busy for other in others))

    @property
    def unused_s(self) -> float:
        """Returns seconds since the last client left."""
        return self._loop.time() - self._used_at

    async def ask(
        self, request_id: str, wire: bytes, timeout_s: float, client_left: ClientGone | None
    ) -> Reply | ReplyStream:
        """The one reply to this request, as a stream if its first piece comes before its end.

        Raises:
            ServeError: it was refused, or its deadline passed.
            ClientLeft: `client_left` finished first.
        """
        loop = self._loop
        waiter = PendingRequest(request_id, wire, timeout_s, loop.time(), loop.create_future())
        self._canceller.watch(waiter, client_left)
        self._enter(waiter)
        try:
            reply = await waiter.reply
            self._drain_rate.count(loop.time())
            return cast("Reply | ReplyStream", reply)
        finally:
            self._used_at = loop.time()
            self._canceller.unwatch(waiter)
            waiter.leave()
            if self._waiting.get(waiter.request_id) is waiter:
                del self._waiting[waiter.request_id]
            if waiter.reply.cancelled():
                self._canceller.cancel(waiter, ClientLeft())

    async def close(self) -> None:
        """Ends the loops and refuses the requests that still wait."""
        for waiter in list(self._waiting.values()):
            waiter.fail(errors.Draining("The server is shutting down.", retry_after_s=1.0))
        await end_tasks(filter(None, self._loops.values()))
        await self._background.close()
        await self._large_replies.close()
        await self._canceller.close()
        await self._verbs.close()

    def _enter(self, waiter: PendingRequest) -> None:
        self._waiting[waiter.request_id] = waiter
        self._pending.append(waiter)
        for body, task in self._loops.items():
            if task is None or task.done():
                going = keep_going(body, "model={} version={}".format(*self._key))
                self._loops[body] = self._loop.create_task(going)

    # --- submit

    async def _flush(self) -> None:
        while self._pending:
            await asyncio.sleep(0)  # requests that arrive in the same turn of the loop go along
            waiters = take_some(self._pending)
            if not waiters:
                continue
            try:
                codes = await submit_waiters(self._verbs, waiters, self._moved_at)
            except errors.ServeError as error:
                for waiter in waiters:
                    self._give_up(waiter, error)
                continue
            except Exception:
                for waiter in waiters:
                    self._give_up(waiter, errors.InternalError("The request was not passed on."))
                raise
            self._moved_at = self._loop.time()
            for waiter, code in zip(waiters, codes, strict=True):
                self._admit(waiter, code)

    def _give_up(self, waiter: PendingRequest, error: errors.ServeError) -> None:
        """Its client is told at once; it is not run later, and leaves no body behind."""
        if isinstance(error, errors.StoreUnavailable):  # one that is full is there
            self._was_away_at = self._loop.time()
        waiter.fail(error)
        waiter.wire = b""
        self._canceller.cancel(waiter, error)

    def _admit(self, waiter: PendingRequest, code: SubmitCode) -> None:
        if code is SubmitCode.QUEUED or code is SubmitCode.KNOWN:
            waiter.is_queued = True
            self._queued_at = self._moved_at
            if waiter.is_given_up:
                # While this submit was on its way, so that there was nothing to cancel yet.
                self._canceller.cancel(waiter, ClientLeft())
            return
        if code is SubmitCode.NO_VERSION:
            # It may have been emptied although no connection was lost. A node that brings its
            # registry back need not be one that has workers.
            self._was_away_at = self._loop.time()
        now_s = self._loop.time()
        if now_s - waiter.entered_at < self._patience_s(waiter, code):
            self._loop.call_later(2 * RETRY_S, self._again, waiter)
        else:
            retry_after_s = self._drain_rate.retry_after_s(len(self._waiting), now_s)
            waiter.fail(refusal(code, self._key, retry_after_s))

    def _patience_s(self, waiter: PendingRequest, code: SubmitCode) -> float:
        """Seconds from its arrival for which the request is sent again in spite of this refusal.

        Redis may only have restarted, and the registry is being restored, or workers have not
        beaten yet. Or its clock has stepped, which makes all beats look old.
        """
        if code is SubmitCode.NO_VERSION:
            return self._patience.version_s
        if code not in (SubmitCode.NO_WORKER, SubmitCode.NO_BEAT, SubmitCode.NO_TICKET):
            return 0.0
        now_s = self._loop.time()
        # A model that had to be looked up has no channel, and others have noticed.
        is_back = now_s - self._was_away_at < self._patience.back_s or self._outage.was_within(
            self._patience.back_s
        )
        if waiter.is_resubmitted or is_back:
            return self._patience.version_s
        # All are silent at once, though by our own clock one of them lived a moment ago.
        has_stepped = code is SubmitCode.NO_BEAT and now_s - self._queued_at < self._patience.back_s
        return self._patience.beat_s if has_stepped else 0.0

    def _again(self, waiter: PendingRequest) -> None:
        if not waiter.reply.done():
            self._enter(waiter)

    # --- receive

    async def _read(self) -> None:
        delivered: list[str] = []
        # Somebody may come while the last replies are being discarded.
        while self._waiting or delivered:
            try:
                if self._waiting:
                    delivered = self._deliver(await self._verbs.receive(delivered))
                    self._outage.over("receive")
                else:
                    discarded, delivered = delivered, []
                    await self._verbs.discard(discarded)
            except AWAY as error:
                # A doorbell may have been popped into the broken connection; the audit finds out.
                if isinstance(error, REFUSED):
                    # Answers come late then, by the audit, and nobody else would say why.
                    self._outage.note("receive", error)
                self._was_away_at = self._loop.time()
                delivered = []
                await asyncio.sleep(RETRY_S)

    def _deliver(self, values: Mapping[str, bytes | None]) -> list[str]:
        """Gives the waiters their replies; returns the ids whose reply keys are needed no more."""
        delivered: list[str] = []
        for request_id, value in values.items():
            waiter = self._waiting.get(request_id)
            if waiter is None:
                delivered.append(request_id)
                continue
            if value is None:
                self._look_for_chunks(waiter)
                continue
            try:
                reply = decode_reply(request_id, value)
                if reply.chunks and waiter.stream is None:
                    waiter = self._open_stream(waiter)
                waiter.resolve(reply)
                delivered.append(request_id)
            except LargeReply as reply_elsewhere:
                # Its reply key stays until it has been read: to the audit it is not lost.
                self._large_replies.add(request_id, reply_elsewhere.attempt)
            except ProtocolError as error:
                log.error("unreadable reply request=%s: %s", request_id, error)
                waiter.resolve(
                    error_reply(errors.InternalError("The worker's answer cannot be read."))
                )
        return delivered

    # --- answers in pieces

    def _look_for_chunks(self, waiter: PendingRequest) -> None:
        async def look() -> None:
            with contextlib.suppress(*AWAY):
                if await self._verbs.read_chunks(waiter.request_id, 0):
                    self._open_stream(waiter)

        if waiter.stream is not None:
            waiter.stream.poke()
        elif not waiter.reply.done():
            self._background.start(look())

    def _open_stream(self, waiter: PendingRequest) -> PendingRequest:
        """Gives the client a stream; returns the pending request for the rest of the answer."""
        current = self._waiting.get(waiter.request_id, waiter)
        if waiter.reply.done():
            return current
        timeout_s, reply = waiter.timeout_s, self._loop.create_future()
        rest = PendingRequest(waiter.request_id, b"", timeout_s, self._loop.time(), reply)
        rest.is_queued = True
        self._canceller.watch(rest, None)
        rest.stream = ReplyStream(rest, self._verbs, self._leave)
        self._waiting[rest.request_id] = rest
        waiter.resolve(rest.stream)
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
            asked = {t.request_id: t for t in self._waiting.values() if t.is_queued}
            await asyncio.sleep(self._patience.audit_s)
            due = [
                request_id
                for request_id, waiter in asked.items()
                if not waiter.reply.done() and waiter.request_id == request_id
            ]
            with contextlib.suppress(*AWAY):
                codes = await self._verbs.audit(due)
                await self._heal(dict(zip(due, codes, strict=True)))

    async def _heal(self, codes: dict[str, AuditCode]) -> None:
        replied = [request_id for request_id, code in codes.items() if code is AuditCode.REPLIED]
        if replied:
            self._deliver(await self._verbs.fetch(replied))
        lost: list[tuple[str, PendingRequest]] = []
        for request_id, code in codes.items():
            waiter = self._waiting.get(request_id)
            if waiter is None or waiter.reply.done():
                continue
            if code is AuditCode.LOST:
                lost.append((request_id, waiter))
            elif code is AuditCode.STREAMED:
                self._look_for_chunks(waiter)
            elif code is AuditCode.ABANDONED:
                self._canceller.give_up(waiter, queue_error("unregistered"))
        pairs = [f"{old_id}:{one.request_id}" for old_id, one in lost if self._resubmit(one)]
        if pairs:
            self.resubmitted += len(pairs)
            log.warning(
                "resubmitted model=%s version=%s requests=%d old:new=%s",
                *(*self._key, len(pairs), ",".join(pairs[:MOST_IN_LOG])),
            )

    def _resubmit(self, waiter: PendingRequest) -> bool:
        """Returns whether it has entered again, under a new id.

        An answer to the old one reaches nobody.
        """
        is_late = (
            waiter.deadline - self._loop.time() < self._patience.resubmit_share * waiter.timeout_s
        )
        # The client has the first pieces of a stream: another run would send them again.
        if is_late or waiter.stream is not None:
            waiter.fail(queue_lost())
            return False
        del self._waiting[waiter.request_id]
        waiter.enter_anew(fresh_request_id(), self._loop.time())
        self._enter(waiter)
        return True
