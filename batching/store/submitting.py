"""Submits tickets in one script call, repeated under the same ids while Redis is briefly away."""

import asyncio
from collections.abc import Sequence

from redis.exceptions import OutOfMemoryError, RedisError

from batching.store.ingress_verbs import IngressVerbs, Submission, SubmitCode
from batching.store.refusals import memory_full, store_unavailable
from batching.store.ticket import Ticket

SUBMIT_PATIENCE_S = 0.8  # Redis down at submit is answered within a second
RETRY_S = 0.05


async def submit_tickets(verbs: IngressVerbs, tickets: Sequence[Ticket]) -> list[SubmitCode]:
    """What became of each ticket's request.

    Raises:
        QueueMemoryFull, StoreUnavailable: it was given up. What Redis has heard of it, or will hear
            late, is to be taken back.
    """
    now = asyncio.get_running_loop().time
    cause: Exception | None = None
    try:
        async with asyncio.timeout(_patience_s(tickets, now())):
            while True:
                # Who was answered meanwhile, or has left: an earlier try has queued the request.
                open_tickets = [ticket for ticket in tickets if not ticket.reply.done()]
                try:
                    codes = await verbs.submit([_submission(one, now()) for one in open_tickets])
                    found = dict(zip(open_tickets, codes, strict=True))
                    return [found.get(ticket, SubmitCode.KNOWN) for ticket in tickets]
                except OutOfMemoryError as error:
                    raise memory_full() from error
                except (RedisError, OSError) as error:
                    cause = error
                    await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise store_unavailable() from cause


def _submission(ticket: Ticket, now: float) -> Submission:
    age_us = None if ticket.is_resubmitted else int((now - ticket.entered_at) * 1e6)
    return Submission(
        ticket.request_id,
        ttl_ms=max(1, int((ticket.deadline - now) * 1000)),
        wire=ticket.wire,
        age_us=age_us,
    )


def _patience_s(tickets: Sequence[Ticket], now: float) -> float:
    """Seconds for this submit; whoever waited behind one that failed has less left."""
    oldest_age_s = max(now - ticket.entered_at for ticket in tickets)
    return max(2 * RETRY_S, SUBMIT_PATIENCE_S - oldest_age_s)
