"""Decides when a batch leaves, by how fast requests come and what a batch costs; without I/O."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from batching.models.spec import ModelSpec
from batching.protocol import ClosedBy

# The share of a latency target in which a batch may run: a request may first have to wait for the
# batch before its own.
RUN_SHARE = 0.5

# The share of a worker's time that smaller batches may take. They cost more in all: a worker that
# cannot keep up with them lets requests wait far longer than any batch runs. An overrun worker sees
# only as many requests as it answers; it recovers because this share is well below 1.
BUSY_SHARE = 0.25

# A pause counts as a gap of this length at most. Otherwise a quiet night would outweigh the first
# few requests of the morning.
LONGEST_GAP_S = 1.0
GAP_WEIGHT = 0.2
COST_DECAY = 0.95
DRAIN_WINDOW_S = 5.0
SOONEST_S, LATEST_S = 1.0, 60.0
UNKNOWN_DRAIN_S = 5.0  # nothing has been answered lately
LEAST_VARIANCE = 0.25  # of the batch size; below this, the cost of one more request is unknown


@dataclass(frozen=True, slots=True)
class Estimate:
    """Holds the seconds between two arrivals, and the cost of a batch: fixed, and per item."""

    gap_s: float = math.inf
    fixed_s: float = 0.0
    per_item_s: float = 0.0

    def run_s(self, size: int) -> float:
        return self.fixed_s + size * self.per_item_s


class Estimator:
    """Learns from finished batches; recent ones count more.

    Each of several workers sees only its share of the requests, and overestimates the gaps: it
    waits less than would pay, never more.
    """

    def __init__(self) -> None:
        self.estimate = Estimate()
        self._last_arrival_s = -math.inf
        self._cost = _Regression()

    def observe(self, ages_s: Sequence[float], run_s: float, now_s: float, jobs: int = 0) -> None:
        """Learns from a batch that was answered at `now_s`, on any steady clock.

        Each request had waited for its age, float [n], when the batch began, and `run_s` later all
        were answered. `jobs` ran along, whose ages do not count as gaps; n + jobs >= 1.
        """
        gap_s = self.estimate.gap_s
        if ages_s:
            newest_s = now_s - run_s - min(ages_s)
            since_s = max(0.0, newest_s - self._last_arrival_s)
            if not math.isinf(since_s):
                seen_s = min(since_s / len(ages_s), LONGEST_GAP_S)
                gap_s = seen_s if math.isinf(gap_s) else gap_s + GAP_WEIGHT * (seen_s - gap_s)
            self._last_arrival_s = newest_s
        self._cost.add(len(ages_s) + jobs, run_s)
        self.estimate = Estimate(gap_s, *self._cost.line())


class _Regression:
    """Fits cost over size by least squares, with fading weights for older points."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._slope = 0.0

    def add(self, size: int, cost_s: float) -> None:
        sums = (self._weight, self._x, self._y, self._xx, self._xy)
        point = (1.0, size, cost_s, size * size, size * cost_s)
        self._weight, self._x, self._y, self._xx, self._xy = (
            COST_DECAY * old + new for old, new in zip(sums, point, strict=True)
        )

    def line(self) -> tuple[float, float]:
        """Returns the cost of a batch and of each request in it, neither negative.

        While all batches have one size, the slope keeps its last value, 0 at first. Larger batches
        may then look too good, until they are tried.
        """
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance >= LEAST_VARIANCE:
            self._slope = (self._xy / self._weight - mean_x * mean_y) / variance
        self._slope = min(max(0.0, self._slope), mean_y / mean_x)
        return mean_y - self._slope * mean_x, self._slope


class DrainRate:
    """Measures how fast a queue empties, by the answers of two windows of DRAIN_WINDOW_S.

    Times are seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._window_start_s = 0.0
        self._count = 0
        self._previous = 0

    def count(self, now_s: float, answered: int = 1) -> None:
        self._roll(now_s)
        self._count += answered

    def per_s(self, now_s: float) -> float:
        """Returns answers per second; the previous window counts by its share in DRAIN_WINDOW_S."""
        self._roll(now_s)
        share = 1.0 - (now_s - self._window_start_s) / DRAIN_WINDOW_S
        return (self._previous * share + self._count) / DRAIN_WINDOW_S

    def retry_after_s(self, waiting: int, now_s: float) -> float:
        """Estimates when `waiting` requests will have been answered, from 1 to 60 seconds."""
        rate = self.per_s(now_s)
        if rate <= 0.0:
            return UNKNOWN_DRAIN_S
        return min(LATEST_S, max(SOONEST_S, waiting / rate))

    def _roll(self, now_s: float) -> None:
        elapsed_s = now_s - self._window_start_s
        if elapsed_s < DRAIN_WINDOW_S:
            return
        self._previous = self._count if elapsed_s < 2 * DRAIN_WINDOW_S else 0
        self._count = 0
        self._window_start_s = now_s - elapsed_s % DRAIN_WINDOW_S


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Lets a full batch leave at once, a partial one when its oldest request is old enough.

    TorchServe starts the clock when a worker takes the first job; here the wait for it counts, too.
    """

    batch_size: int
    patience_s: float  # the longest wait of a partial batch, from its oldest request's arrival

    def seconds_left(self, waiting: int, oldest_age_s: float) -> float:
        """Returns how long `waiting` requests should go on waiting for more; 0: leave now."""
        if waiting >= self.batch_size:
            return 0.0
        return max(0.0, self.patience_s - oldest_age_s)

    def closed_by(self, oldest_age_s: float) -> ClosedBy:
        """Returns why a batch that is not full leaves at this age."""
        return ClosedBy.DELAY if self.patience_s > 0 else ClosedBy.IDLE

    def observe(self, ages_s: Sequence[float], run_s: float, now_s: float, jobs: int = 0) -> None:
        """Does nothing: this policy does not learn."""


def worthwhile_size(estimate: Estimate, batch_size: int) -> int:
    """Returns the size up to which it pays to wait for one more request.

    It makes n others wait for a gap between arrivals, and spares itself the fixed cost of a batch
    of its own, less that gap: it pays while n + 1 gaps are less than that cost.
    """
    if estimate.gap_s <= 0:
        return batch_size
    gaps = min(batch_size + 1, estimate.fixed_s / estimate.gap_s)
    return max(1, math.ceil(gaps) - 1)


def largest_size(estimate: Estimate, batch_size: int, latency_slo_s: float) -> int:
    """Returns the largest batch that is expected to run in its share of the latency target.

    It is never too small to keep up with the requests. If not even a batch of one runs in that
    share, or without a target (0), the size is not limited.
    """
    room_s = RUN_SHARE * latency_slo_s - estimate.fixed_s
    # In its share of n gaps between arrivals, a batch of n has to run.
    spare_s = BUSY_SHARE * estimate.gap_s - estimate.per_item_s
    if estimate.per_item_s <= 0 or room_s < estimate.per_item_s or spare_s <= 0:
        return batch_size
    fitting = int(min(batch_size, room_s / estimate.per_item_s))
    sufficient = math.ceil(min(batch_size, estimate.fixed_s / spare_s))
    return max(1, fitting, sufficient)


@dataclass(slots=True)
class AdaptivePolicy:
    """Waits only as long as waiting is expected to pay, and never longer than `max_wait_s`."""

    max_batch_size: int
    max_wait_s: float  # of a partial batch, from the arrival of its oldest request
    latency_slo_s: float = 0.0  # the 99th percentile aimed at, from arrival to reply; 0: none
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
        self.estimator.observe(ages_s, run_s, now_s, jobs)


BatchPolicy = FixedPolicy | AdaptivePolicy


def policy_of(spec: ModelSpec) -> BatchPolicy:
    """Returns the policy that this model version was registered with."""
    max_wait_s = spec.max_batch_delay_ms / 1000
    if spec.batch_policy == "adaptive":
        return AdaptivePolicy(spec.batch_size, max_wait_s, spec.latency_slo_ms / 1000)
    return FixedPolicy(spec.batch_size, max_wait_s)
