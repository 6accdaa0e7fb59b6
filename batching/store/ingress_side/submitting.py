"""Submits requests in one script call, repeated under the same ids while Redis is briefly away."""

import asyncio
from collections.abc import Sequence

from redis.exceptions import OutOfMemoryError

from batching.protocol import INLINE_LIMIT_BYTES
from batching.store.ingress_side.ingress_queue import IngressQueue, Submission, SubmitCode
from batching.store.ingress_side.pending_request import PendingRequest
from batching.store.redis_errors import AWAY
from batching.store.unavailable import memory_full, store_unavailable

SUBMIT_AT_ONCE = 256
SUBMIT_AT_ONCE_BYTES = 16 * 1024 * 1024
SUBMIT_PATIENCE_S = 0.8  # Redis down at submit is answered within a second
BYTES_PER_S = 10_000_000  # what bodies get time for: a line of 100 Mbit/s
RETRY_S = 0.05


def take_some(pending: list[PendingRequest]) -> list[PendingRequest]:
    """Takes as many from the front as one submit may bring; returns those that still wait."""
    count = size_bytes = 0
    for waiter in pending[:SUBMIT_AT_ONCE]:
        size_bytes += len(waiter.wire)
        if count and size_bytes > SUBMIT_AT_ONCE_BYTES:
            break
        count += 1
    taken = pending[:count]
    del pending[:count]
    return [waiter for waiter in taken if not waiter.reply.done()]


async def submit_waiters(
    verbs: IngressQueue, waiters: Sequence[PendingRequest], moved_at: float
) -> list[SubmitCode]:
    """Returns what became of each waiter's request.

    Args:
        verbs: of the version.
        waiters: as taken.
        moved_at: when the submit before this one succeeded, in the event loop's time. A request's
            patience counts from here if that is later than its arrival: a queue of slow bodies is
            no outage.

    Raises:
        QueueMemoryFull, StoreUnavailable: it was given up. What Redis has heard of it, or will hear
            late, is to be taken back.
    """
    now = asyncio.get_running_loop().time
    cause: Exception | None = None
    end = now() + _patience_s(waiters, moved_at, now())
    try:
        async with asyncio.timeout_at(end + _size_bytes(waiters) / BYTES_PER_S) as limit:
            while True:
                # Others were answered meanwhile, or have left: an earlier try has queued them.
                still_waiting = [waiter for waiter in waiters if not waiter.reply.done()]
                try:
                    codes = await verbs.submit([_submission(one, now()) for one in still_waiting])
                    found = dict(zip(still_waiting, codes, strict=True))
                    return [found.get(waiter, SubmitCode.KNOWN) for waiter in waiters]
                except OutOfMemoryError as error:
                    raise memory_full() from error
                except AWAY as error:
                    cause = error
                    if limit.expired():
                        # An error that came at the same moment may win over the cancellation
                        # (asyncio.wait_for before Python 3.12).
                        raise TimeoutError from error
                    limit.reschedule(end)  # what has failed is not on its way
                    await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise store_unavailable(cause) from cause


def _submission(waiter: PendingRequest, now: float) -> Submission:
    age_us = None if waiter.is_resubmitted else int((now - waiter.entered_at) * 1e6)
    return Submission(
        waiter.request_id,
        ttl_ms=max(1, int((waiter.deadline - now) * 1000)),
        wire=waiter.wire,
        age_us=age_us,
    )


def _size_bytes(waiters: Sequence[PendingRequest]) -> int:
    sizes = [len(waiter.wire) for waiter in waiters]
    return sum(size for size in sizes if size > INLINE_LIMIT_BYTES)


def _patience_s(waiters: Sequence[PendingRequest], moved_at: float, now: float) -> float:
    """Returns seconds for this submit; whoever waited behind one that failed has less left."""
    oldest_age_s = max(now - max(waiter.entered_at, moved_at) for waiter in waiters)
    return max(2 * RETRY_S, SUBMIT_PATIENCE_S - oldest_age_s)
