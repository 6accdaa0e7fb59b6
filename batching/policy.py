"""Decides when a batch leaves. The decisions are pure: numbers in, seconds left out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from batching.estimate import Estimate, Estimator
from batching.models.spec import ModelSpec
from batching.protocol import ClosedBy

# Of a latency target, the part in which a batch may run: a request may have to wait for the batch
# before its own to end.
RUN_SHARE = 0.5

# Of a worker's time, the part that smaller batches may take. They cost more in all: a worker that
# cannot keep up with them lets requests wait far longer than any batch runs. One that was overrun
# sees only as many requests as it answers; it gets out because this share is well below 1.
BUSY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Lets a full batch leave at once, a partial one when its oldest request is old enough.

    TorchServe starts the clock when a worker takes the first job; here it starts when that request
    arrives, so time spent waiting for a busy worker counts.

    Attributes:
        batch_size: the largest batch.
        patience_s: the longest wait of a partial batch, from the arrival of its oldest request.
    """

    batch_size: int
    patience_s: float

    def seconds_left(self, waiting: int, oldest_age_s: float) -> float:
        """Returns how long `waiting` requests should go on waiting for more; 0: leave now."""
        if waiting >= self.batch_size:
            return 0.0
        return max(0.0, self.patience_s - oldest_age_s)

    def closed_by(self, oldest_age_s: float) -> ClosedBy:
        """Returns why a batch that is not full leaves at this age."""
        return ClosedBy.DELAY if self.patience_s > 0 else ClosedBy.IDLE

    def observe(self, ages_s: Sequence[float], run_s: float, now_s: float, jobs: int = 0) -> None:
        """Does nothing: this policy learns nothing."""


def worthwhile_size(estimate: Estimate, batch_size: int) -> int:
    """Returns the size up to which it pays to wait for one more.

    One more request makes `n` others wait for a gap between arrivals, and spares itself the fixed
    cost of a batch of its own, less that gap. It pays while n + 1 gaps are less than that cost.
    """
    if estimate.gap_s <= 0:
        return batch_size
    gaps = min(batch_size + 1, estimate.fixed_s / estimate.gap_s)
    return max(1, math.ceil(gaps) - 1)


def largest_size(estimate: Estimate, batch_size: int, latency_slo_s: float) -> int:
    """Returns the largest batch that is expected to run in its share of the latency target.

    It is never smaller than what keeps up with the requests that come. Where not even a batch of
    one runs in that share, smaller ones would not bring the target within reach; without a target
    (0), none does.
    """
    room_s = RUN_SHARE * latency_slo_s - estimate.fixed_s
    if estimate.per_item_s <= 0 or room_s < estimate.per_item_s:
        return batch_size
    fitting = int(min(batch_size, room_s / estimate.per_item_s))
    return max(fitting, sufficient_size(estimate, batch_size))


def sufficient_size(estimate: Estimate, batch_size: int) -> int:
    """Returns the smallest batch that keeps a worker busy for no more than BUSY_SHARE of its time.

    In that share of n gaps between arrivals, a batch of n has to run.
    """
    spare_s = BUSY_SHARE * estimate.gap_s - estimate.per_item_s
    if spare_s <= 0:
        return batch_size
    return max(1, math.ceil(min(batch_size, estimate.fixed_s / spare_s)))


@dataclass(slots=True)
class AdaptivePolicy:
    """Waits only as long as waiting is expected to pay, and never longer than `max_wait_s`.

    Args:
        max_batch_size: the largest batch.
        max_wait_s: the longest wait of a partial batch, from the arrival of its oldest request.
        latency_slo_s: the 99th percentile aimed at, from arrival to reply; 0: none.
    """

    max_batch_size: int
    max_wait_s: float
    latency_slo_s: float = 0.0
    estimator: Estimator = field(default_factory=Estimator)

    @property
    def batch_size(self) -> int:
        """Returns the largest batch that the latency target allows."""
        return largest_size(self.estimator.estimate, self.max_batch_size, self.latency_slo_s)

    @property
    def patience_s(self) -> float:
        """Returns the longest wait of a partial batch; 0 while a lone request should not wait."""
        return self.seconds_left(1, 0.0)

    def seconds_left(self, waiting: int, oldest_age_s: float) -> float:
        """Returns how long `waiting` requests should go on waiting for more; 0: leave now."""
        estimate, batch_size = self.estimator.estimate, self.batch_size
        missing = worthwhile_size(estimate, batch_size) - waiting
        if missing <= 0:
            return 0.0
        left_s = min(missing * estimate.gap_s, self.max_wait_s - oldest_age_s)
        if self.latency_slo_s > 0:
            left_s = min(left_s, self.latency_slo_s - oldest_age_s - estimate.run_s(batch_size))
        return max(0.0, left_s)

    def closed_by(self, oldest_age_s: float) -> ClosedBy:
        """Returns why a batch that is not full leaves at this age."""
        # Ages are measured in microseconds.
        if round(oldest_age_s - self.max_wait_s, 6) < 0:
            return ClosedBy.ADAPTIVE
        return ClosedBy.DELAY if self.max_wait_s > 0 else ClosedBy.IDLE

    def observe(self, ages_s: Sequence[float], run_s: float, now_s: float, jobs: int = 0) -> None:
        """Learns from a batch: how long each request had waited, and how long the batch took."""
        self.estimator.observe(ages_s, run_s, now_s, jobs)


BatchPolicy = FixedPolicy | AdaptivePolicy


def policy_of(spec: ModelSpec) -> BatchPolicy:
    """Returns the policy that this model version was registered with."""
    max_wait_s = spec.max_batch_delay_ms / 1000
    if spec.batch_policy == "adaptive":
        return AdaptivePolicy(spec.batch_size, max_wait_s, spec.latency_slo_ms / 1000)
    return FixedPolicy(spec.batch_size, max_wait_s)
