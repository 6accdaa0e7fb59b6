"""Exports what handlers have measured, under TorchServe's names.

Source: TorchServe 0.12 docs/metrics.md; the texts of HELP are its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from batching.errors import StoreUnavailable
from batching.metrics.declared import DeclaredMetric
from batching.metrics.series import ABOVE, SUM, MetricKind, Series
from batching.models.spec import VersionKey
from batching.store.redis_errors import AWAY
from batching.store.registry.registry import Registry

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Family:
    """Everything measured under one name."""

    kind: MetricKind
    unit: str
    values: dict[Labels, dict[str, float]] = field(default_factory=dict)

    def add(self, series: Series, value: float) -> None:
        """Adds a value. Of two models with equal labels, sums add up, and one gauge is kept."""
        parts = self.values.setdefault(series.labels, {})
        is_gauge = self.kind is MetricKind.GAUGE
        parts[series.part] = value if is_gauge else parts.get(series.part, 0.0) + value


class HandlerMetrics(Collector):
    """Exports what the handlers of all versions have measured; nothing while Redis is away."""

    def __init__(
        self,
        registry: Registry,
        read: Callable[[VersionKey], Mapping[Series, float]],
        declared: Sequence[DeclaredMetric],
    ) -> None:
        self._registry = registry
        self._read = read
        self._declared = declared

    def collect(self) -> Iterator[Metric]:
        """Yields one family per name; as in TorchServe, a declared one needs no value."""
        families = {metric.name: _Family(metric.kind, metric.unit) for metric in self._declared}
        try:
            for spec in self._registry.specs():
                _sort_into(families, self._read(spec.key))
        except (*AWAY, StoreUnavailable):
            return
        for name, family in sorted(families.items()):
            yield _metric(name, family)


def _sort_into(families: dict[str, _Family], measured: Mapping[Series, float]) -> None:
    for series, value in measured.items():
        family = families.setdefault(series.name, _Family(series.kind, series.unit))
        # In a scrape, a name has one kind: that of the model that came first.
        if family.kind is series.kind:
            family.add(series, value)


def _metric(name: str, family: _Family) -> Metric:
    text = f"Torchserve prometheus {family.kind} metric with unit: {family.unit}"
    metric = Metric(name, text, family.kind.value)
    for labels, parts in sorted(family.values.items()):
        if family.kind is MetricKind.HISTOGRAM:
            _add_histogram(metric, dict(labels), parts)
        else:
            metric.add_sample(name, dict(labels), parts.get("", 0.0))
    return metric


def _add_histogram(metric: Metric, labels: dict[str, str], parts: Mapping[str, float]) -> None:
    bounds = sorted((part for part in parts if part not in (SUM, ABOVE)), key=float)
    count = 0.0
    for bound in (*bounds, ABOVE):
        count += parts.get(bound, 0.0)
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, parts.get(SUM, 0.0))
