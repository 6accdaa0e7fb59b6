"""Submits requests in one script call, repeated under the same ids while Redis is briefly away."""

import asyncio
from collections.abc import Sequence

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.models.entry import no_version
from batching.models.spec import VersionKey
from batching.protocol import INLINE_LIMIT_BYTES
from batching.store.ingress_side.ingress_queue import IngressQueue, Submission, SubmitCode
from batching.store.ingress_side.patience import USUAL_PATIENCE, Patience
from batching.store.ingress_side.pending_request import PendingRequest
from batching.store.redis_errors import AWAY
from batching.store.unavailable import memory_full, store_unavailable

SUBMIT_AT_ONCE = 256


def take_some(pending: list[PendingRequest], most_bytes: int) -> list[PendingRequest]:
    """Takes as many from the front as one submit may bring; returns those that still wait."""
    count = size_bytes = 0
    for request in pending[:SUBMIT_AT_ONCE]:
        size_bytes += request.wire.size_bytes
        if count and size_bytes > most_bytes:
            break
        count += 1
    taken = pending[:count]
    del pending[:count]
    return [request for request in taken if not request.reply.done()]


async def submit(
    queue: IngressQueue,
    requests: Sequence[PendingRequest],
    moved_at: float,
    patience: Patience = USUAL_PATIENCE,
) -> list[SubmitCode]:
    """Returns what became of each request.

    Args:
        queue: of the version.
        requests: as taken.
        moved_at: when the submit before this one succeeded, in the event loop's time. A request's
            patience counts from here if that is later than its arrival: a queue of slow bodies is
            no outage.
        patience: of the channel.

    Raises:
        QueueMemoryFull, StoreUnavailable: it was given up. Redis may have heard some of it, or may
            hear it late; that is to be taken back.
    """
    now = asyncio.get_running_loop().time
    cause: Exception | None = None
    oldest_age_s = max(now() - max(request.entered_at, moved_at) for request in requests)
    end = now() + max(2 * patience.retry_s, patience.submit_s - oldest_age_s)
    try:
        async with asyncio.timeout_at(end + _size_bytes(requests) / patience.bytes_per_s) as limit:
            while True:
                # Others were answered meanwhile, or have left: an earlier try has queued them.
                still_waiting = [request for request in requests if not request.reply.done()]
                try:
                    codes = await queue.submit([_submission(one, now()) for one in still_waiting])
                    found = dict(zip(still_waiting, codes, strict=True))
                    return [found.get(request, SubmitCode.KNOWN) for request in requests]
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


def _submission(request: PendingRequest, now: float) -> Submission:
    age_us = None if request.is_resubmitted else int((now - request.entered_at) * 1e6)
    ttl_ms = max(1, int((request.deadline - now) * 1000))
    return Submission(request.request_id, ttl_ms, request.wire, age_us)


def _size_bytes(requests: Sequence[PendingRequest]) -> int:
    sizes = [request.wire.size_bytes for request in requests]
    return sum(size for size in sizes if size > INLINE_LIMIT_BYTES)


def refusal(code: SubmitCode, key: VersionKey, retry_after_s: float) -> errors.ServeError:
    """Returns the error for a client whose request was refused with this code.

    Each reason has a text of its own; TorchServe calls all of them "no worker". `retry_after_s` is
    when a full queue has emptied.
    """
    name = key.model_name
    if code is SubmitCode.FULL:
        return errors.QueueFull(
            f'The queue of model "{name}" is full. Try again later, add workers, or raise '
            "job_queue_size.",
            retry_after_s=retry_after_s,
        )
    if code is SubmitCode.NO_TICKET:
        return errors.NoTicket(
            f'No worker of model "{name}" is free, and with useJobTicket no request waits for one. '
            "Try again later, or add workers.",
            retry_after_s=retry_after_s,
        )
    if code is SubmitCode.NO_WORKER or code is SubmitCode.NO_BEAT:
        return errors.NoWorker(
            f'Model "{name}" has no worker to serve inference request. Please use scale workers '
            "API to add workers.",
            retry_after_s=1.0,
        )
    if code is SubmitCode.NO_MEMORY:
        return memory_full()
    return no_version(*key)
