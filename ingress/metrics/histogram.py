"""Histograms for what is counted once per request, in the event loop.

prometheus_client's own take a lock for each of their numbers and look through all buckets, a sixth
of what an echo cost the ingress. These are two additions, which prometheus_client writes out.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Child:
    """The observations of one set of labels."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more value, in the first bucket whose bound is not below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> tuple[list[int], float]:
        """Returns how many values lie in each bucket or below it, the last one all.

        And their sum.
        """
        return list(accumulate(self._counts)), self._sum


class Histogram(Collector):
    """A family of them. Observed by one thread, read by any."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = tuple(bounds)
        self._bound_texts = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        self._children: dict[tuple[str, ...], Child] = {}

    def labels(self, *values: str) -> Child:
        """Returns the child with these label values; look it up once."""
        found = self._children.get(values)
        if found is None:
            found = self._children[values] = Child(self._bounds)
        return found

    def remove(self, *values: str) -> None:
        """There is no child with these label values."""
        self._children.pop(values, None)

    def collect(self) -> Iterator[Metric]:
        """Yields the family with its current values."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, child in list(self._children.items()):
            counts, total = child.read()
            buckets = list(zip(self._bound_texts, counts, strict=True))
            family.add_metric(values, buckets, total)
        yield family
