"""Estimates how fast requests come, what a batch costs, and how fast a queue empties."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A pause counts as a gap of this length at most. Otherwise a quiet night would outweigh the first
# few requests of the morning.
LONGEST_GAP_S = 1.0
GAP_WEIGHT = 0.2
COST_DECAY = 0.95
DRAIN_WINDOW_S = 5.0
SOONEST_S, LATEST_S = 1.0, 60.0
UNKNOWN_DRAIN_S = 5.0  # nothing has been answered lately
LEAST_VARIANCE = 0.25  # of the batch size; below, the cost of one more request is unknown


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds between two arrivals, and what a batch costs: fixed, and per item."""

    gap_s: float = math.inf
    fixed_s: float = 0.0
    per_item_s: float = 0.0

    def run_s(self, size: int) -> float:
        """Returns how long a batch of this size takes."""
        return self.fixed_s + size * self.per_item_s


class Estimator:
    """Learns from finished batches; recent ones count more.

    Each of several workers sees only its share of the requests and takes the gaps for longer than
    they are: it then waits less than would pay, never more.
    """

    def __init__(self) -> None:
        self.estimate = Estimate()
        self._last_arrival_s: float | None = None
        self._cost = _Regression()

    def observe(self, ages_s: Sequence[float], run_s: float, now_s: float, jobs: int = 0) -> None:
        """Learns from a batch that was answered.

        Args:
            ages_s: how long each request had waited when the batch began; float [n].
            run_s: seconds from then until all were answered.
            now_s: the end of that time, on any steady clock.
            jobs: how many jobs ran along, which say nothing of when requests come; n + jobs >= 1.
        """
        self._cost.add(len(ages_s) + jobs, run_s)
        gap_s = self._gap_s(ages_s, now_s - run_s) if ages_s else self.estimate.gap_s
        self.estimate = Estimate(gap_s, *self._cost.line())

    def _gap_s(self, ages_s: Sequence[float], began_s: float) -> float:
        newest_s = began_s - min(ages_s)
        before_s, self._last_arrival_s = self._last_arrival_s, newest_s
        known_s = self.estimate.gap_s
        if before_s is None:
            return known_s
        seen_s = min(max(0.0, newest_s - before_s) / len(ages_s), LONGEST_GAP_S)
        return seen_s if math.isinf(known_s) else known_s + GAP_WEIGHT * (seen_s - known_s)


class _Regression:
    """Least squares of cost over size, older points fading."""

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

        While all batches have one size, the slope stays as it was last known, 0 at first. Larger
        batches then look better than they may be, and trying them tells.
        """
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance >= LEAST_VARIANCE:
            self._slope = (self._xy / self._weight - mean_x * mean_y) / variance
        self._slope = min(max(0.0, self._slope), mean_y / mean_x)
        return mean_y - self._slope * mean_x, self._slope


class DrainRate:
    """Measures how fast a queue empties, and so when a refused client should come back.

    Answers are counted over the last few seconds, by two counts and no history.

    Times are seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._window_start = 0.0
        self._count = 0
        self._previous = 0

    def count(self, now_s: float, answered: int = 1) -> None:
        """Counts answered requests."""
        self._roll(now_s)
        self._count += answered

    def per_s(self, now_s: float) -> float:
        """Returns answers per second; the previous window counts by its share in DRAIN_WINDOW_S."""
        self._roll(now_s)
        share = 1.0 - (now_s - self._window_start) / DRAIN_WINDOW_S
        return (self._previous * share + self._count) / DRAIN_WINDOW_S

    def retry_after_s(self, waiting: int, now_s: float) -> float:
        """Estimates when `waiting` requests will have been answered, from 1 to 60 seconds."""
        rate = self.per_s(now_s)
        if rate <= 0.0:
            return UNKNOWN_DRAIN_S
        return min(LATEST_S, max(SOONEST_S, waiting / rate))

    def _roll(self, now_s: float) -> None:
        elapsed_s = now_s - self._window_start
        if elapsed_s < DRAIN_WINDOW_S:
            return
        self._previous = self._count if elapsed_s < 2 * DRAIN_WINDOW_S else 0
        self._count = 0
        self._window_start = now_s - elapsed_s % DRAIN_WINDOW_S
