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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from redis.exceptions import OutOfMemoryError, RedisError

from batching import errors
from batching.drain_rate import DrainRate
from batching.model_spec import VersionKey
from batching.protocol import ProtocolError, Reply
from batching.request_ids import next_uuid4
from batching.store.departures import Departures
from batching.store.ingress_verbs import AuditCode, IngressVerbs, Submission, SubmitCode
from batching.store.refusals import memory_full, refusal, store_unavailable
from batching.store.replies import LargeReply, decode_reply, error_reply
from batching.store.tasks import end_tasks
from batching.store.ticket import ClientGone, ClientLeft, Ticket

__all__ = ["ClientGone", "ClientLeft", "Lane"]

log = logging.getLogger(__name__)

SUBMIT_AT_ONCE = 256
SUBMIT_PATIENCE_S = 0.8  # Redis down at submit is answered within a second
VERSION_PATIENCE_S = 1.5  # after Redis was emptied, a node restores the registry within a beat
RETRY_S = 0.05
AUDIT_S = 0.5  # what Redis lost is noticed within twice this
WATCH_AFTER_S = 0.1  # fast requests do not pay for watching their client
RESUBMIT_SHARE = 0.25  # of the deadline must be left


class Lane:
    """Submits for one version and waits for the replies."""

    def __init__(self, key: VersionKey, verbs: IngressVerbs) -> None:
        self.resubmitted = 0
        self._key = key
        self._verbs = verbs
        self._loop = asyncio.get_running_loop()
        self._pending: list[Ticket] = []
        self._waiting: dict[str, Ticket] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._drain_rate = DrainRate()
        self._strays: set[asyncio.Task[None]] = set()
        self._departures = Departures(verbs, self._deliver)

    @property
    def waiting(self) -> int:
        """How many clients wait."""
        return len(self._waiting)

    async def ask(
        self, request_id: str, wire: bytes, timeout_s: float, client_left: ClientGone | None
    ) -> Reply:
        """The one reply to this request.

        Raises:
            ServeError: it was refused, or its deadline passed.
            ClientLeft: `client_left` finished first.
        """
        loop = self._loop
        ticket = Ticket(request_id, wire, timeout_s, loop.time(), loop.create_future())
        # One timer per request: most are answered before it fires the first time.
        first_s = min(timeout_s, WATCH_AFTER_S)
        ticket.timer = loop.call_later(first_s, self._on_timer, ticket, client_left)
        self._enter(ticket)
        try:
            reply = await ticket.reply
            self._drain_rate.count(loop.time())
            return reply
        finally:
            self._waiting.pop(ticket.request_id, None)
            ticket.timer.cancel()
            if ticket.reply.cancelled():
                self._departures.add(ticket, ClientLeft())

    async def close(self) -> None:
        """The loops have ended; whoever still waits is refused."""
        for ticket in list(self._waiting.values()):
            ticket.fail(errors.Draining("The server is shutting down.", retry_after_s=1.0))
        await end_tasks([*self._tasks.values(), *self._strays])
        await self._departures.close()
        await self._verbs.close()

    def _enter(self, ticket: Ticket) -> None:
        self._waiting[ticket.request_id] = ticket
        self._pending.append(ticket)
        self._run("flush", self._flush)
        self._run("read", self._read)
        self._run("audit", self._audit)

    def _run(self, name: str, loop_body: Callable[[], Coroutine[None, None, None]]) -> None:
        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = self._loop.create_task(loop_body())

    def _stray(self, body: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(body)
        self._strays.add(task)
        task.add_done_callback(self._strays.discard)

    # --- submit

    async def _flush(self) -> None:
        while self._pending:
            await asyncio.sleep(0)  # requests that arrive in the same turn of the loop go along
            tickets = [t for t in self._pending[:SUBMIT_AT_ONCE] if not t.reply.done()]
            del self._pending[:SUBMIT_AT_ONCE]
            if not tickets:
                continue
            try:
                codes = await self._submit(tickets)
            except errors.ServeError as error:
                for ticket in tickets:
                    ticket.fail(error)
                continue
            for ticket, code in zip(tickets, codes, strict=True):
                self._admit(ticket, code)

    async def _submit(self, tickets: Sequence[Ticket]) -> list[SubmitCode]:
        """One script call, repeated under the same ids while Redis is briefly away."""
        try:
            async with asyncio.timeout(self._patience_s(tickets)):
                while True:
                    now = self._loop.time()
                    submissions = [
                        Submission(
                            t.request_id,
                            ttl_ms=max(1, int((t.deadline - now) * 1000)),
                            wire=t.wire,
                            age_us=int((now - t.entered_at) * 1e6),
                        )
                        for t in tickets
                    ]
                    try:
                        return await self._verbs.submit(submissions)
                    except OutOfMemoryError as error:
                        raise memory_full() from error
                    except (RedisError, OSError):
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise store_unavailable() from None

    def _patience_s(self, tickets: Sequence[Ticket]) -> float:
        """Seconds for this submit; whoever waited behind one that failed has less left."""
        oldest_age_s = max(self._age_s(ticket) for ticket in tickets)
        return max(2 * RETRY_S, SUBMIT_PATIENCE_S - oldest_age_s)

    def _admit(self, ticket: Ticket, code: SubmitCode) -> None:
        if code in (SubmitCode.QUEUED, SubmitCode.KNOWN):
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
        """Whether Redis was perhaps emptied just now, and a node is about to refill it."""
        may_be_missing = code is SubmitCode.NO_VERSION or (
            code is SubmitCode.NO_WORKER and ticket.is_resubmitted
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
            except (RedisError, OSError):
                # A doorbell may have been popped into the broken connection; the audit finds out.
                collected = []
                await asyncio.sleep(RETRY_S)

    def _deliver(self, values: Mapping[str, bytes | None]) -> list[str]:
        """The waiters have their replies; the ids whose reply keys are needed no more."""
        collected: list[str] = []
        for request_id, value in values.items():
            ticket = self._waiting.get(request_id)
            if ticket is None or value is None:
                collected.append(request_id)
                continue
            try:
                ticket.resolve(decode_reply(request_id, value))
                collected.append(request_id)
            except LargeReply as large:
                # Its reply key stays until it has been read: to the audit it is not lost.
                self._stray(self._deliver_large(request_id, large.attempt))
            except ProtocolError as error:
                log.error("unreadable reply request=%s: %s", request_id, error)
                ticket.resolve(
                    error_reply(errors.InternalError("The worker's answer cannot be read."))
                )
        return collected

    async def _deliver_large(self, request_id: str, attempt: str) -> None:
        # What fails here, or is gone with its Redis, is left to the audit.
        with contextlib.suppress(RedisError, OSError):
            self._deliver({request_id: await self._verbs.fetch_large(request_id, attempt)})
            await self._verbs.discard_large(request_id, attempt)
            await self._verbs.discard([request_id])

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
            with contextlib.suppress(RedisError, OSError):
                codes = await self._verbs.audit(due)
                await self._heal(dict(zip(due, codes, strict=True)))

    async def _heal(self, codes: dict[str, AuditCode]) -> None:
        replied = [request_id for request_id, code in codes.items() if code is AuditCode.REPLIED]
        if replied:
            self._deliver(await self._verbs.fetch(replied))
        for request_id, code in codes.items():
            ticket = self._waiting.get(request_id)
            if code is AuditCode.LOST and ticket is not None and not ticket.reply.done():
                self._resubmit(ticket)

    def _resubmit(self, ticket: Ticket) -> None:
        if ticket.deadline - self._loop.time() < RESUBMIT_SHARE * ticket.timeout_s:
            ticket.fail(
                errors.QueueLost("The queue was lost. Send the request again.", retry_after_s=1.0)
            )
            return
        del self._waiting[ticket.request_id]
        # A new id: whoever still works on the old one can answer nobody.
        new_id = next_uuid4()
        log.warning("resubmitted model=%s request=%s as=%s", self._key, ticket.request_id, new_id)
        self.resubmitted += 1
        ticket.enter_anew(new_id, self._loop.time())
        self._enter(ticket)

    # --- give up

    def _on_timer(self, ticket: Ticket, client_left: ClientGone | None) -> None:
        left_s = ticket.deadline - self._loop.time()
        if left_s > 0:
            ticket.timer = self._loop.call_later(left_s, self._on_timer, ticket, None)
            if client_left is not None:
                self._watch(ticket, client_left)
        else:
            text = "The request's deadline passed before its answer was there."
            self._give_up(ticket, errors.DeadlineExceeded(text))

    def _watch(self, ticket: Ticket, client_left: ClientGone) -> None:
        async def watch() -> None:
            gone = asyncio.ensure_future(client_left())
            outcomes: set[asyncio.Future[Any]] = {gone, ticket.reply}
            try:
                await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
            self._give_up(ticket, ClientLeft())

        if not ticket.reply.done():
            self._stray(watch())

    def _give_up(self, ticket: Ticket, error: Exception) -> None:
        if not ticket.reply.done():
            self._departures.add(ticket, error)
