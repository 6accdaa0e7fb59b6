"""One ingress's traffic with one model version: submits coalesced, replies matched by id.

A lane has three small loops that run only while somebody waits: `_flush` submits what has gathered
since its last round trip in one script call; `_read` blocks on this ingress's doorbell and fetches
the replies it names; `_audit` beats and looks, twice a second, for requests whose doorbell or whose
whole queue was lost. A lane without waiting requests costs nothing.

The waiting ingress is the durability: it still holds the body, and submits again what Redis lost.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping

from batching import errors
from batching.drain_rate import DrainRate
from batching.model_spec import VersionKey
from batching.protocol import ProtocolError, Reply
from batching.request_ids import fresh_request_id
from batching.store.departures import Departures
from batching.store.ingress_verbs import AuditCode, IngressVerbs, SubmitCode
from batching.store.large_reply_fetcher import LargeReplyFetcher
from batching.store.redis_errors import AWAY
from batching.store.refusals import queue_lost, refusal
from batching.store.replies import LargeReply, decode_reply, error_reply
from batching.store.reply_stream import ReplyStream
from batching.store.submitting import RETRY_S, submit_tickets, take_some
from batching.store.tasks import end_tasks, keep_going
from batching.store.ticket import ClientGone, ClientLeft, Ticket

__all__ = ["ClientGone", "ClientLeft", "Lane"]

log = logging.getLogger(__name__)

BACK_S = 3.0
VERSION_PATIENCE_S = 1.5  # after Redis was emptied, a node restores the registry within a beat
AUDIT_S = 0.5  # what Redis lost is noticed within twice this
RESUBMIT_SHARE = 0.25  # of the deadline must be left
MOST_IN_LOG = 8


class Lane:
    """Submits for one version and waits for the replies."""

    def __init__(self, key: VersionKey, verbs: IngressVerbs) -> None:
        self.resubmitted = 0
        self._key = key
        self._verbs = verbs
        self._loop = asyncio.get_running_loop()
        self._pending: list[Ticket] = []
        self._waiting: dict[str, Ticket] = {}
        self._loops = (self._flush, self._read, self._audit)
        self._tasks: list[asyncio.Task[None] | None] = [None] * len(self._loops)
        self._drain_rate = DrainRate()
        self._was_away_at = -BACK_S
        self._moved_at = 0.0
        self._used_at = self._loop.time()
        self._strays: set[asyncio.Task[None]] = set()
        self._departures = Departures(verbs, self._deliver)
        self._large_replies = LargeReplyFetcher(
            verbs, lambda request_id: request_id in self._waiting, self._deliver
        )

    @property
    def waiting(self) -> int:
        """How many clients wait."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and nothing is under way."""
        is_busy = any(task is not None and not task.done() for task in self._tasks)
        is_busy = is_busy or self._large_replies.is_busy or self._departures.is_busy
        return not (self._waiting or self._strays or is_busy)

    @property
    def unused_s(self) -> float:
        """Seconds since the last client left."""
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
        ticket = Ticket(request_id, wire, timeout_s, loop.time(), loop.create_future())
        self._departures.watch(ticket, client_left)
        self._enter(ticket)
        try:
            reply = await ticket.reply
            self._drain_rate.count(loop.time())
            return reply
        finally:
            self._used_at = loop.time()
            ticket.leave()
            if self._waiting.get(ticket.request_id) is ticket:
                del self._waiting[ticket.request_id]
            if ticket.reply.cancelled():
                self._departures.add(ticket, ClientLeft())

    async def close(self) -> None:
        """The loops have ended; whoever still waits is refused."""
        for ticket in list(self._waiting.values()):
            ticket.fail(errors.Draining("The server is shutting down.", retry_after_s=1.0))
        await end_tasks([*filter(None, self._tasks), *self._strays])
        await self._large_replies.close()
        await self._departures.close()
        await self._verbs.close()

    def _enter(self, ticket: Ticket) -> None:
        self._waiting[ticket.request_id] = ticket
        self._pending.append(ticket)
        for number, task in enumerate(self._tasks):
            if task is None or task.done():
                going = keep_going(self._loops[number], "model={} version={}".format(*self._key))
                self._tasks[number] = self._loop.create_task(going)

    def _stray(self, body: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(body)
        self._strays.add(task)
        task.add_done_callback(self._strays.discard)

    # --- submit

    async def _flush(self) -> None:
        while self._pending:
            await asyncio.sleep(0)  # requests that arrive in the same turn of the loop go along
            tickets = take_some(self._pending)
            if not tickets:
                continue
            try:
                codes = await submit_tickets(self._verbs, tickets, self._moved_at)
            except errors.ServeError as error:
                self._was_away_at = self._loop.time()
                for ticket in tickets:
                    self._give_up(ticket, error)
                continue
            except Exception:
                for ticket in tickets:
                    self._give_up(ticket, errors.InternalError("The request was not passed on."))
                raise
            self._moved_at = self._loop.time()
            for ticket, code in zip(tickets, codes, strict=True):
                self._admit(ticket, code)

    def _give_up(self, ticket: Ticket, error: errors.ServeError) -> None:
        """Its client is told at once; it is not run later, and leaves no body behind."""
        ticket.fail(error)
        ticket.wire = b""
        self._departures.add(ticket, error)

    def _admit(self, ticket: Ticket, code: SubmitCode) -> None:
        if code is SubmitCode.QUEUED or code is SubmitCode.KNOWN:
            ticket.is_queued = True
            if ticket.is_given_up:
                # While this submit was on its way, so that there was nothing to cancel yet.
                self._departures.add(ticket, ClientLeft())
        elif self._may_be_restored(ticket, code):
            self._loop.call_later(2 * RETRY_S, self._again, ticket)
        else:
            now_s = self._loop.time()
            retry_after_s = self._drain_rate.retry_after_s(len(self._waiting), now_s)
            ticket.fail(refusal(code, self._key, retry_after_s))

    def _may_be_restored(self, ticket: Ticket, code: SubmitCode) -> bool:
        """Whether Redis was perhaps emptied just now, and a node is about to refill it.

        Or was away for longer than a worker may be silent, and the workers are about to beat, and
        those without work to say so.
        """
        is_back = self._loop.time() - self._was_away_at < BACK_S
        may_be_missing = code is SubmitCode.NO_VERSION or (
            code in (SubmitCode.NO_WORKER, SubmitCode.NO_TICKET)
            and (ticket.is_resubmitted or is_back)
        )
        return may_be_missing and self._age_s(ticket) < VERSION_PATIENCE_S

    def _age_s(self, ticket: Ticket) -> float:
        return self._loop.time() - ticket.entered_at

    def _again(self, ticket: Ticket) -> None:
        if not ticket.reply.done():
            self._enter(ticket)

    # --- collect

    async def _read(self) -> None:
        collected: list[str] = []
        # Somebody may come while the last replies are being discarded.
        while self._waiting or collected:
            try:
                if self._waiting:
                    collected = self._deliver(await self._verbs.collect(collected))
                else:
                    discarded, collected = collected, []
                    await self._verbs.discard(discarded)
            except AWAY:
                # A doorbell may have been popped into the broken connection; the audit finds out.
                self._was_away_at = self._loop.time()
                collected = []
                await asyncio.sleep(RETRY_S)

    def _deliver(self, values: Mapping[str, bytes | None]) -> list[str]:
        """The waiters have their replies; the ids whose reply keys are needed no more."""
        collected: list[str] = []
        for request_id, value in values.items():
            ticket = self._waiting.get(request_id)
            if ticket is None:
                collected.append(request_id)
                continue
            if value is None:
                self._look_for_chunks(ticket)
                continue
            try:
                reply = decode_reply(request_id, value)
                if reply.chunks and ticket.stream is None:
                    ticket = self._open_stream(ticket)
                ticket.resolve(reply)
                collected.append(request_id)
            except LargeReply as reply_elsewhere:
                # Its reply key stays until it has been read: to the audit it is not lost.
                self._large_replies.add(request_id, reply_elsewhere.attempt)
            except ProtocolError as error:
                log.error("unreadable reply request=%s: %s", request_id, error)
                ticket.resolve(
                    error_reply(errors.InternalError("The worker's answer cannot be read."))
                )
        return collected

    # --- answers in pieces

    def _look_for_chunks(self, ticket: Ticket) -> None:
        async def look() -> None:
            with contextlib.suppress(*AWAY):
                if await self._verbs.read_chunks(ticket.request_id, 0):
                    self._open_stream(ticket)

        if ticket.stream is not None:
            ticket.stream.poke()
        elif not ticket.reply.done():
            self._stray(look())

    def _open_stream(self, ticket: Ticket) -> Ticket:
        """The waiter has a stream; the ticket of what is still to come."""
        current = self._waiting.get(ticket.request_id, ticket)
        if ticket.reply.done():
            return current
        timeout_s, reply = ticket.timeout_s, self._loop.create_future()
        rest = Ticket(ticket.request_id, b"", timeout_s, self._loop.time(), reply)
        rest.is_queued = True
        self._departures.watch(rest, None)
        rest.stream = ReplyStream(rest, self._verbs, self._leave)
        self._waiting[rest.request_id] = rest
        ticket.resolve(rest.stream)
        return rest

    def _leave(self, rest: Ticket) -> None:
        """The reader of a stream is done with it, or has gone."""
        rest.leave()
        self._waiting.pop(rest.request_id, None)
        self._departures.give_up(rest, ClientLeft())

    # --- audit

    async def _audit(self) -> None:
        while self._waiting:
            asked = {t.request_id: t for t in self._waiting.values() if t.is_queued}
            await asyncio.sleep(AUDIT_S)
            due = [
                request_id
                for request_id, ticket in asked.items()
                if not ticket.reply.done() and ticket.request_id == request_id
            ]
            with contextlib.suppress(*AWAY):
                codes = await self._verbs.audit(due)
                await self._heal(dict(zip(due, codes, strict=True)))

    async def _heal(self, codes: dict[str, AuditCode]) -> None:
        replied = [request_id for request_id, code in codes.items() if code is AuditCode.REPLIED]
        if replied:
            self._deliver(await self._verbs.fetch(replied))
        lost: list[tuple[str, Ticket]] = []
        for request_id, code in codes.items():
            ticket = self._waiting.get(request_id)
            if ticket is None or ticket.reply.done():
                continue
            if code is AuditCode.LOST:
                lost.append((request_id, ticket))
            elif code is AuditCode.STREAMED:
                self._look_for_chunks(ticket)
        pairs = [f"{old_id}:{one.request_id}" for old_id, one in lost if self._resubmit(one)]
        if pairs:
            self.resubmitted += len(pairs)
            log.warning(
                "resubmitted model=%s version=%s requests=%d old:new=%s",
                *(*self._key, len(pairs), ",".join(pairs[:MOST_IN_LOG])),
            )

    def _resubmit(self, ticket: Ticket) -> bool:
        """Whether it has entered again, under a new id: who works on the old one answers nobody."""
        is_late = ticket.deadline - self._loop.time() < RESUBMIT_SHARE * ticket.timeout_s
        # The client has the first pieces of a stream: another run would send them again.
        if is_late or ticket.stream is not None:
            ticket.fail(queue_lost())
            return False
        del self._waiting[ticket.request_id]
        ticket.enter_anew(fresh_request_id(), self._loop.time())
        self._enter(ticket)
        return True
