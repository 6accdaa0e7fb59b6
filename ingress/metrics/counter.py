"""Counters for what is counted once per request, in the event loop.

prometheus_client's own take a lock for each number, as its histograms do (`histogram`).
"""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class Count:
    """How often it has happened with one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self) -> None:
        """Once more."""
        self.value += 1


class Counter(Collector):
    """A family of them. Counted by one thread, read by any."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._counts: dict[tuple[str, ...], Count] = {}

    def labels(self, *values: str) -> Count:
        """Returns the count with these label values; look it up once."""
        found = self._counts.get(values)
        if found is None:
            found = self._counts[values] = Count()
        return found

    def remove(self, first: tuple[str, ...]) -> None:
        """There is no count any more whose first label values are these."""
        for values in list(self._counts):
            if values[: len(first)] == first:
                del self._counts[values]

    def collect(self) -> Iterator[Metric]:
        """Yields the family with its current values."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in list(self._counts.items()):
            family.add_metric(values, count.value)
        yield family
