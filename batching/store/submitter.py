"""Submits requests in one script call, repeated under the same ids while Redis is briefly away."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from redis.exceptions import OutOfMemoryError

from batching import errors
from batching.models.entry import no_version
from batching.models.spec import VersionKey
from batching.protocol import NO_WIRE
from batching.store.canceller import Canceller
from batching.store.ingress_queue import IngressQueue, Submission, SubmitCode
from batching.store.patience import USUAL_PATIENCE, Patience
from batching.store.pending_request import ClientLeft, PendingRequest
from batching.store.redis_errors import AWAY, OutageLog, memory_full, store_unavailable

SUBMIT_AT_ONCE = 256

# Redis' proto-max-bulk-len can be no lower.
_SURELY_TAKEN_BYTES = 1024 * 1024


class RefusedByRedis(errors.PayloadTooLarge):
    """The body is within `max_request_size`, but larger than Redis takes."""

    reason = "payload_too_large_for_redis"


class Channel(Protocol):
    """Names what a submitter needs of its channel."""

    def enter(self, request: PendingRequest) -> None: ...
    def fail(self, request: PendingRequest, error: Exception) -> None: ...
    def retry_after_s(self) -> float: ...


class Submitter:
    """Submits the requests of one channel, and submits again what may be refused only for now.

    The next `flush` submits those that are `pending`.
    """

    def __init__(
        self,
        key: VersionKey,
        queue: IngressQueue,
        outage: OutageLog,
        patience: Patience,
        *,
        channel: Channel,
        canceller: Canceller,
    ) -> None:
        self.moved_at = 0.0
        self._key = key
        self._queue = queue
        self._outage = outage
        self._patience = patience
        self._channel = channel
        self._canceller = canceller
        self._loop = asyncio.get_running_loop()
        self.pending: list[PendingRequest] = []
        self._was_away_at = self._queued_at = -patience.back_s

    def note_outage(self) -> None:
        """Notes that Redis is away: for a while after that, a refusal may not be the last word."""
        self._was_away_at = self._loop.time()

    async def flush(self) -> None:
        """Submits until no request is left."""
        while self.pending:
            await asyncio.sleep(0)  # requests that arrive in the same turn of the loop go along
            requests = take_some(self.pending, self._patience.submit_bytes)
            if requests:
                await self._submit(requests)

    async def _submit(self, requests: Sequence[PendingRequest]) -> None:
        try:
            codes = await submit(self._queue, requests, self.moved_at, self._patience)
        except Exception as error:
            self._give_up(requests, error)
            if not isinstance(error, errors.ServeError):
                raise
            return
        self._outage.over("submit")
        self.moved_at = self._loop.time()
        for request, code in zip(requests, codes, strict=True):
            self._admit(request, code)

    def _give_up(self, requests: Sequence[PendingRequest], error: Exception) -> None:
        """Tells the clients at once; no request is run later, and none leaves a body behind."""
        if isinstance(error, errors.StoreUnavailable):  # a Redis that is full is not away
            self._outage.note("submit", error)
            self.note_outage()
        if not isinstance(error, errors.ServeError):
            error = errors.InternalError("The request was not passed on.")
        for request in requests:
            self._channel.fail(request, error)
            request.wire = NO_WIRE
            self._canceller.cancel(request, error)

    def _admit(self, request: PendingRequest, code: SubmitCode) -> None:
        if code is SubmitCode.QUEUED or code is SubmitCode.KNOWN:
            request.is_queued = True
            self._queued_at = self.moved_at
            if request.is_given_up:
                # While this submit was on its way, so that there was nothing to cancel yet.
                self._canceller.cancel(request, ClientLeft())
            return
        if code is SubmitCode.NO_VERSION:
            # Redis may have been emptied although no connection was lost. The node that restores
            # the registry need not be one that has workers.
            self.note_outage()
        if self._loop.time() - request.entered_at < self._patience_s(request, code):
            self._loop.call_later(2 * self._patience.retry_s, self._again, request)
        else:
            error = refusal(code, self._key, self._channel.retry_after_s())
            self._channel.fail(request, error)

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

    def _again(self, request: PendingRequest) -> None:
        if not request.is_over:
            self._channel.enter(request)


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
    try:
        async with asyncio.timeout_at(end + _body_bytes(requests) / patience.bytes_per_s) as limit:
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
    now_s: float,
) -> list[SubmitCode]:
    # Others were answered meanwhile, or have left: an earlier try has queued them.
    waiting = [one for one in requests if not one.is_over and one not in too_large]
    codes = await queue.submit([_submission(one, now_s) for one in waiting]) if waiting else []
    if len(waiting) == len(requests):
        return codes
    found = dict(zip(waiting, codes, strict=True)) | dict.fromkeys(too_large, SubmitCode.TOO_LARGE)
    return [found.get(request, SubmitCode.KNOWN) for request in requests]


async def _finds_too_large(
    queue: IngressQueue, requests: Sequence[PendingRequest], too_large: set[PendingRequest]
) -> bool:
    """Adds the request with the largest body if Redis takes none of that size."""
    others = [one for one in requests if one not in too_large]
    largest = max(others, key=lambda one: len(one.wire.body), default=None)
    if largest is None or len(largest.wire.body) <= _SURELY_TAKEN_BYTES:
        return False
    is_refused = await queue.refuses(largest.wire.size_bytes)
    if is_refused:
        too_large.add(largest)
    return is_refused


def _submission(request: PendingRequest, now: float) -> Submission:
    age_us = None if request.is_resubmitted else int((now - request.entered_at) * 1e6)
    ttl_ms = max(1, int((request.deadline - now) * 1000))
    return Submission(request.request_id, ttl_ms, request.wire, age_us)


def _body_bytes(requests: Sequence[PendingRequest]) -> int:
    return sum([len(request.wire.body) for request in requests])


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
