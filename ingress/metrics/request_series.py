"""Counters and histograms for what is counted once per request, in the event loop.

prometheus_client's own take a lock for each number, and its histograms look through all buckets: a
sixth of what an echo cost the ingress. Here it is an addition or two; prometheus_client writes the
families out.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

S = TypeVar("S")


class Count:
    """How often it has happened with one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self) -> None:
        self.value += 1


class Distribution:
    """The observed values of one set of labels, by bucket."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Adds a value to the first bucket whose bound is not below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class _Family(Generic[S]):
    """All series of one name. Counted by one thread, read by any."""

    def __init__(self, name: str, text: str, labels: Sequence[str], make: Callable[[], S]) -> None:
        self._head = name, text
        self._labels = labels
        self._make = make
        self._series: dict[tuple[str, ...], S] = {}

    def labels(self, *values: str) -> S:
        """Returns the series with these label values; look it up once."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = self._make()
        return series

    def remove(self, first: tuple[str, ...]) -> None:
        """Removes the series whose first label values are these."""
        for values in list(self._series):
            if values[: len(first)] == first:
                del self._series[values]


class Counter(_Family[Count]):
    """Counts by label values."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        super().__init__(name, text, labels, Count)

    def collect(self) -> Metric:
        family = CounterMetricFamily(*self._head, labels=self._labels)
        for values, count in list(self._series.items()):
            family.add_metric(values, count.value)
        return family


class Histogram(_Family[Distribution]):
    """Distributions by label values."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        super().__init__(name, text, labels, lambda: Distribution(bounds))
        self._bound_texts = [*(str(float(bound)) for bound in bounds), "+Inf"]

    def collect(self) -> Metric:
        family = HistogramMetricFamily(*self._head, labels=self._labels)
        for values, series in list(self._series.items()):
            buckets = list(zip(self._bound_texts, accumulate(series.counts), strict=True))
            family.add_metric(values, buckets, series.sum)
        return family
