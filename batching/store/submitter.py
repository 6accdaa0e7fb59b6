"""One submit: many requests in one script call, repeated under the same ids while Redis is away."""

import asyncio
from collections.abc import Collection, Sequence

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.models.entry import no_version
from batching.models.spec import VersionKey
from batching.store.ingress_queue import (
    USUAL_PATIENCE,
    IngressQueue,
    Patience,
    Submission,
    SubmitCode,
)
from batching.store.pending_request import PendingRequest
from batching.store.redis_errors import AWAY, memory_full, store_unavailable

SUBMIT_AT_ONCE = 256

# Redis' proto-max-bulk-len can be no lower.
_SURELY_TAKEN_BYTES = 1024 * 1024


class RefusedByRedis(errors.PayloadTooLarge):
    """Says that the body is within `max_request_size`, but larger than Redis takes."""

    reason = "payload_too_large_for_redis"


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
    too_large: set[PendingRequest] = set()
    oldest_age_s = now() - max(moved_at, min([request.entered_at for request in requests]))
    end = now() + max(2 * patience.retry_s, patience.submit_s - oldest_age_s)
    bodies_s = sum([len(request.wire.body) for request in requests]) / patience.bytes_per_s
    try:
        async with asyncio.timeout_at(end + bodies_s) as limit:
            while True:
                try:
                    return await _submit_open(queue, requests, too_large, now())
                except OutOfMemoryError as error:
                    raise memory_full() from error
                except AWAY as error:
                    cause = error
                    if limit.expired():
                        # An error that came at the same moment may win over the cancellation
                        # (asyncio.wait_for before Python 3.12).
                        raise TimeoutError from error
                    limit.reschedule(end)  # a body whose submit failed is not on its way
                    if not await _finds_too_large(queue, requests, too_large):
                        await asyncio.sleep(patience.retry_s)
    except TimeoutError:
        raise store_unavailable(cause) from cause


async def _submit_open(
    queue: IngressQueue,
    requests: Sequence[PendingRequest],
    too_large: Collection[PendingRequest],
    now: float,
) -> list[SubmitCode]:
    # Others were answered meanwhile, or have left: an earlier try has queued them.
    waiting = [item for item in requests if not item.is_over and item not in too_large]
    submissions = [
        Submission(
            request.request_id,
            max(1, int((request.deadline - now) * 1000)),
            request.wire,
            None if request.is_resubmitted else int((now - request.entered_at) * 1e6),
        )
        for request in waiting
    ]
    codes = await queue.submit(submissions) if waiting else []
    if len(waiting) == len(requests):
        return codes
    code_of = dict(zip(waiting, codes, strict=True))
    code_of |= dict.fromkeys(too_large, SubmitCode.TOO_LARGE)
    return [code_of.get(request, SubmitCode.KNOWN) for request in requests]


async def _finds_too_large(
    queue: IngressQueue, requests: Sequence[PendingRequest], too_large: set[PendingRequest]
) -> bool:
    """Adds the request with the largest body if Redis takes none of that size."""
    others = [item for item in requests if item not in too_large]
    largest = max(others, key=lambda item: len(item.wire.body), default=None)
    if largest is None or len(largest.wire.body) <= _SURELY_TAKEN_BYTES:
        return False
    is_refused = await queue.refuses(largest.wire.size_bytes)
    if is_refused:
        too_large.add(largest)
    return is_refused


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
    if code is SubmitCode.NO_WORKER or code is SubmitCode.NO_BEAT:
        return errors.NoWorker(
            f'Model "{name}" has no worker to serve inference request. Please use scale workers '
            "API to add workers.",
            retry_after_s=1.0,
        )
    if code is SubmitCode.TOO_LARGE:
        return RefusedByRedis(
            "The body is larger than Redis takes: raise Redis' proto-max-bulk-len, or lower "
            "max_request_size, which lets such bodies in."
        )
    if code is SubmitCode.NO_MEMORY:
        return memory_full()
    return no_version(*key)
