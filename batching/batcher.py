"""Forms batches from a source of requests, as a policy decides."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from batching.policy import BatchPolicy
from batching.protocol import JOB, Batch, ClosedBy

# For the time between waking up and having a batch in hand, which `ClaimLead` learns.
LEAD_START_S = 0.0005
LEAD_LIMIT_S = 0.002
LEAD_STEP_S = 0.0001


@dataclass(frozen=True, slots=True)
class Partial:
    """Says that fewer requests than a batch wait, and that this worker is the collector."""

    waiting: int
    oldest_age_s: float


class Nothing(Enum):
    """Says why a claim brought nothing."""

    EMPTY = "nothing waits"
    BUSY = "another worker collects"


class Source(Protocol):
    """Describes the queue as a worker sees it."""

    def claim(self, limit: int, patience_s: float) -> Batch | Partial | Nothing:
        """Claims up to `limit` requests, unless a partial batch may wait for more."""

    def wait_more(self, timeout_s: float) -> bool:
        """Blocks until the batch being collected is full; false after `timeout_s`."""

    def wait_for_work(self, timeout_s: float) -> bool:
        """Blocks until there may be work; false after `timeout_s`, or a little later."""

    def wake_one(self) -> None:
        """Wakes another idle worker."""


class Batcher:
    """Gathers batches: blocks for the first request, then fills the batch until full or late."""

    def __init__(self, source: Source, policy: BatchPolicy) -> None:
        self._source = source
        self._policy = policy

    def gather(self, should_stop: Callable[[], bool], idle_s: float) -> Batch | None:
        """Returns a batch that this worker owns, or None once `should_stop`.

        Blocks while nothing waits, but looks every `idle_s`. The local clock measures a window: an
        idle Redis checks its blocking time-outs only a few times a second.
        """
        policy, source = self._policy, self._source
        patience_s, window_end_s = policy.patience_s, 0.0
        while not should_stop():
            limit = policy.batch_size
            claimed = source.claim(limit, patience_s)
            if isinstance(claimed, Batch):
                return Batch(claimed.items, self._closed_by(claimed, limit, window_end_s))
            patience_s, window_end_s = policy.patience_s, 0.0
            if isinstance(claimed, Partial):
                left_s = policy.seconds_left(claimed.waiting, claimed.oldest_age_s)
                is_full = left_s > 0 and source.wait_more(left_s)
                if not is_full:
                    patience_s = 0.0  # the window is over: take what is there
                    window_end_s = claimed.oldest_age_s + left_s
            elif source.wait_for_work(idle_s) and should_stop():
                source.wake_one()  # the token was meant for a worker that goes on
        return None

    def _closed_by(self, batch: Batch, limit: int, window_end_s: float) -> ClosedBy:
        """Returns why this batch left; `window_end_s` is the age at which its window ended."""
        if len(batch) >= limit:
            return ClosedBy.FULL
        first = batch.items[0]
        if first.owned.attempt > 1:
            return ClosedBy.IDLE  # a suspect, which runs alone and waits for no other request
        return self._policy.closed_by(max(window_end_s, first.queue_us / 1e6))

    def observe(self, batch: Batch, run_s: float, now_s: float) -> None:
        """Teaches the policy that this batch was answered at `now_s`, after `run_s`."""
        ages_s = [item.queue_us / 1e6 for item in batch.items if item.owned.ingress_id != JOB]
        self._policy.observe(ages_s, run_s, now_s, len(batch) - len(ages_s))


class ClaimLead:
    """Learns the time between waking up and having the batch in hand on this machine.

    That is the timer's rounding (a millisecond with poll()), the scheduler's delay and the claim.
    It follows the median in steps, so that a long pause moves it no more than a short one.
    """

    def __init__(self) -> None:
        self.seconds = LEAD_START_S

    def observe(self, late_s: float) -> None:
        """Learns that a batch was in hand this long after its window ended; negative: before."""
        step_s = LEAD_STEP_S if late_s > 0 else -LEAD_STEP_S
        self.seconds = min(max(0.0, self.seconds + step_s), LEAD_LIMIT_S)
