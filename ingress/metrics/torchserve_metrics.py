"""TorchServe's own metrics and those of handlers, under TorchServe's names, labels and units.

Plain sums and last values rather than prometheus_client's objects, which would append `_total`.
Source: TorchServe 0.12 docs/metrics.md; the texts of HELP are its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from prometheus_client.core import Metric

from batching.errors import StoreUnavailable
from batching.metrics import (
    ABOVE,
    COUNTERS,
    GAUGES,
    HOST_LEVEL,
    SUM,
    DeclaredMetric,
    MetricKind,
    Series,
    host_dimensions,
    metric_line,
    metric_log,
    worker_dimensions,
)
from batching.models.spec import VersionKey
from batching.protocol import BatchTiming
from batching.store.redis_errors import AWAY
from batching.store.registry.registry import Registry

# What `metrics_mode=legacy` shows in /metrics.
LEGACY = tuple(name for name in COUNTERS if name.startswith("ts_"))
# Of the last request.
LAST_VALUES = ("QueueTime", "WorkerThreadTime")
_GROUPS = {2: "Requests2XX", 4: "Requests4XX"}

Labels = tuple[tuple[str, str], ...]


class VersionTotals:
    """The sums of one model version, as one kind of URL addresses it."""

    __slots__ = ("_labels", "_metrics", "latency_us", "queue_us", "requests")

    def __init__(self, metrics: "TorchServeMetrics", labels: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._labels = labels
        self.requests = 0.0
        self.latency_us = 0.0
        self.queue_us = 0.0

    def count_arrival(self) -> None:
        """Counts a request, which may still be refused."""
        self.requests += 1
        if self._metrics.is_logging:
            self._metrics.log("ts_inference_requests_total", 1, self._labels)

    def count_success(self, seconds: float, timing: BatchTiming) -> None:
        """Counts a request that was answered with success after so many seconds."""
        self.latency_us += seconds * 1e6
        self.queue_us += timing.queue_us
        metrics = self._metrics
        metrics.last = (seconds, timing)
        if metrics.is_logging:
            for name, value in metrics.last_ms().items():
                metrics.log(name, value, HOST_LEVEL)
            metrics.log("ts_inference_latency_microseconds", seconds * 1e6, self._labels)
            metrics.log("ts_queue_latency_microseconds", timing.queue_us, self._labels)


class TorchServeMetrics:
    """Counts what an ingress counts itself, under TorchServe's names.

    The log has the updates of all names that are not `unlogged`, as /metrics shows those.
    """

    def __init__(self, hostname: str, *, is_logging: bool, unlogged: Sequence[str]) -> None:
        self.is_logging = is_logging
        self._unlogged = unlogged
        self.hostname = hostname
        self._totals: dict[tuple[str, str], VersionTotals] = {}
        self._answers = dict.fromkeys(("Requests2XX", "Requests4XX", "Requests5XX"), 0.0)
        # Of the last request with success: how long it took, and its batch's times.
        self.last: tuple[float, BatchTiming] | None = None

    def totals(self, model_name: str, version_label: str) -> VersionTotals:
        totals = self._totals.get((model_name, version_label))
        if totals is None:
            labels = {"model_name": model_name, "model_version": version_label}
            totals = self._totals[model_name, version_label] = VersionTotals(self, labels)
        return totals

    def keep(self, labels: Set[tuple[str, str]]) -> None:
        """Removes all sums but those of these models and version labels."""
        self._totals = {label: sums for label, sums in self._totals.items() if label in labels}

    def count_answer(self, status: int) -> None:
        """Counts an answer of any port; one that is neither 2xx nor 4xx counts as 5xx."""
        name = _GROUPS.get(status // 100, "Requests5XX")
        self._answers[name] += 1
        if self.is_logging:
            self.log(name, 1, HOST_LEVEL)

    def last_ms(self) -> dict[str, float]:
        """Returns how long the last request waited, and how long its way in and out took."""
        if self.last is None:
            return {}
        seconds, timing = self.last
        queue_ms = timing.queue_us / 1000
        way_ms = max(0.0, seconds * 1000 - queue_ms - timing.handler_us / 1000)
        return dict(zip(LAST_VALUES, (queue_ms, way_ms), strict=True))

    def log(self, name: str, value: float, dimensions: Mapping[str, str]) -> None:
        if name not in self._unlogged:
            metric_log.info(metric_line(name, value, dimensions, self.hostname))

    def collect(self) -> Iterator[Metric]:
        host = {**HOST_LEVEL, "Hostname": self.hostname}
        for name, value in self._answers.items():
            yield _family(name, [(host, value)])
        totals = [
            ({"model_name": model, "model_version": version, "hostname": self.hostname}, sums)
            for (model, version), sums in list(self._totals.items())
        ]
        for name, attribute in zip(LEGACY, ("requests", "latency_us", "queue_us"), strict=True):
            yield _family(name, [(labels, getattr(sums, attribute)) for labels, sums in totals])
        last_ms = self.last_ms()
        for name in LAST_VALUES:
            yield _family(name, [(host, last_ms[name])] if name in last_ms else [])


def node_families(registry: Registry) -> Iterator[Metric]:
    """Yields what nodes have measured of their hosts and workers; nothing while Redis is away."""
    try:
        samples = list(_node_samples(registry))
    except StoreUnavailable:
        return
    for name in GAUGES:
        if name not in LAST_VALUES:
            yield _family(name, [(labels, value) for of, labels, value in samples if of == name])


def _node_samples(registry: Registry) -> Iterator[tuple[str, dict[str, str], float]]:
    nodes = registry.nodes()
    for node in nodes:
        for sample in node.samples:
            labels = {**host_dimensions(sample), "Hostname": node.hostname}
            yield sample.name, labels, sample.value
    hosts = {node.node_id: node.hostname for node in nodes}
    alive = registry.alive_nodes()
    for spec in registry.specs():
        for worker in registry.workers(spec.key, alive):
            if worker.load_ms > 0:
                labels = worker_dimensions(worker.worker_id, spec.key)
                labels["Hostname"] = hosts.get(worker.node_id, "")
                yield "WorkerLoadTime", labels, worker.load_ms


def _family(name: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    kind, units = ("counter", COUNTERS) if name in COUNTERS else ("gauge", GAUGES)
    family = _empty_family(name, kind, units[name])
    for labels, value in samples:
        family.add_sample(name, dict(labels), value)
    return family


def _empty_family(name: str, kind: str, unit: str) -> Metric:
    return Metric(name, f"Torchserve prometheus {kind} metric with unit: {unit}", kind)


def handler_families(
    registry: Registry,
    read: Callable[[VersionKey], Mapping[Series, float]],
    declared: Sequence[DeclaredMetric],
) -> list[Metric]:
    """Returns what the handlers of all versions have measured; nothing while Redis is away.

    As in TorchServe, a declared metric needs no value.
    """
    families = {one.name: _empty_family(one.name, one.kind, one.unit) for one in declared}
    values: dict[str, dict[Labels, dict[str, float]]] = {name: {} for name in families}
    try:
        measured = [read(spec.key) for spec in registry.specs()]
    except (*AWAY, StoreUnavailable):
        return []
    for series, value in ((series, value) for of in measured for series, value in of.items()):
        name = series.name
        family = families.setdefault(name, _empty_family(name, series.kind, series.unit))
        # In a scrape, a name has one kind: that of the model that came first.
        if family.type == series.kind:
            parts = values.setdefault(name, {}).setdefault(series.labels, {})
            # Of two models with equal labels, sums add up, and one gauge is kept.
            is_gauge = series.kind is MetricKind.GAUGE
            parts[series.part] = value if is_gauge else parts.get(series.part, 0.0) + value
    for name, family in families.items():
        for labels, parts in sorted(values[name].items()):
            _add_samples(family, dict(labels), parts)
    return [family for _, family in sorted(families.items())]


def _add_samples(metric: Metric, labels: dict[str, str], parts: Mapping[str, float]) -> None:
    if metric.type != MetricKind.HISTOGRAM:
        metric.add_sample(metric.name, labels, parts.get("", 0.0))
        return
    count = 0.0
    for bound in (*sorted(parts.keys() - {SUM, ABOVE}, key=float), ABOVE):
        count += parts.get(bound, 0.0)
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, parts.get(SUM, 0.0))
