"""TorchServe's own metrics, under its names, labels and units in /metrics.

Plain sums and last values rather than prometheus_client's objects, which would append `_total`.
Source: TorchServe 0.12 docs/metrics.md.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from batching.errors import StoreUnavailable
from batching.metrics.lines import (
    COUNTERS,
    GAUGES,
    HOST_LEVEL,
    host_dimensions,
    metric_line,
    metric_log,
    worker_dimensions,
)
from batching.protocol import BatchTiming
from batching.store.registry.registry import Registry

# What `metrics_mode=legacy` shows in /metrics.
LEGACY = tuple(name for name in COUNTERS if name.startswith("ts_"))

_GROUPS = {2: "Requests2XX", 4: "Requests4XX"}
# Of the last request.
LAST_VALUES = ("QueueTime", "WorkerThreadTime")


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
        self._metrics.last = (seconds, timing)
        if self._metrics.is_logging:
            self._metrics.log_times()
            self._metrics.log("ts_inference_latency_microseconds", seconds * 1e6, self._labels)
            self._metrics.log("ts_queue_latency_microseconds", timing.queue_us, self._labels)


class TorchServeMetrics(Collector):
    """What an ingress counts itself, under TorchServe's names."""

    def __init__(self, hostname: str, *, is_logging: bool, unlogged: Collection[str]) -> None:
        self.is_logging = is_logging
        self._unlogged = frozenset(unlogged)
        self.hostname = hostname
        self._totals: dict[tuple[str, str], VersionTotals] = {}
        self._answers = dict.fromkeys(("Requests2XX", "Requests4XX", "Requests5XX"), 0.0)
        # Of the last request with success: how long it took, and its batch's times.
        self.last: tuple[float, BatchTiming] | None = None

    def totals(self, model_name: str, version_label: str) -> VersionTotals:
        """Returns the sums of one model version."""
        found = self._totals.get((model_name, version_label))
        if found is None:
            labels = {"model_name": model_name, "model_version": version_label}
            found = self._totals[model_name, version_label] = VersionTotals(self, labels)
        return found

    def keep(self, labels: Set[tuple[str, str]]) -> None:
        """Removes all sums but those of these models and version labels."""
        self._totals = {label: sums for label, sums in self._totals.items() if label in labels}

    def count_answer(self, status: int) -> None:
        """Counts an answer of any port; one that is neither 2xx nor 4xx counts as 5xx."""
        name = _GROUPS.get(status // 100, "Requests5XX")
        self._answers[name] += 1
        if self.is_logging:
            self.log(name, 1, HOST_LEVEL)

    def log_times(self) -> None:
        """Logs how long the last request waited and was handled."""
        for name, value in self._times_ms():
            self.log(name, value, HOST_LEVEL)

    def log(self, name: str, value: float, dimensions: Mapping[str, str]) -> None:
        """Logs the update, unless /metrics shows it."""
        if name in self._unlogged:
            return
        metric_log.info(metric_line(name, value, dimensions, self.hostname))

    def collect(self) -> Iterator[Metric]:
        """Yields the families of this ingress."""
        host = {**HOST_LEVEL, "Hostname": self.hostname}
        for name, value in self._answers.items():
            yield _family(name, [(host, value)])
        yield from self._version_families()
        times_ms = dict(self._times_ms())
        for name in LAST_VALUES:
            yield _family(name, [(host, times_ms[name])] if name in times_ms else [])

    def _times_ms(self) -> Iterator[tuple[str, float]]:
        if self.last is not None:
            seconds, timing = self.last
            queue_ms = timing.queue_us / 1000
            # Neither queue nor handler: the way in and out.
            rest_ms = seconds * 1000 - queue_ms - timing.handler_us / 1000
            yield from zip(LAST_VALUES, (queue_ms, max(0.0, rest_ms)), strict=True)

    def _version_families(self) -> Iterator[Metric]:
        totals = list(self._totals.items())
        for name, values in (
            ("ts_inference_requests_total", [one.requests for _, one in totals]),
            ("ts_inference_latency_microseconds", [one.latency_us for _, one in totals]),
            ("ts_queue_latency_microseconds", [one.queue_us for _, one in totals]),
        ):
            labels = [
                {"model_name": model, "model_version": version, "hostname": self.hostname}
                for (model, version), _ in totals
            ]
            yield _family(name, zip(labels, values, strict=True))


class NodeMetrics(Collector):
    """Exports what nodes have measured of their hosts and workers, as Redis has it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yields one family per name; nothing while Redis is away."""
        try:
            found = list(self._samples())
        except StoreUnavailable:
            return
        for name in GAUGES:
            if name not in LAST_VALUES:
                samples = [(labels, value) for known, labels, value in found if known == name]
                yield _family(name, samples)

    def _samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        nodes = self._registry.nodes()
        for node in nodes:
            for sample in node.samples:
                labels = {**host_dimensions(sample), "Hostname": node.hostname}
                yield sample.name, labels, sample.value
        hosts = {node.node_id: node.hostname for node in nodes}
        alive = self._registry.alive_nodes()
        for spec in self._registry.specs():
            for worker in self._registry.workers(spec.key, alive):
                if worker.load_ms > 0:
                    labels = worker_dimensions(worker.worker_id, spec.key)
                    labels["Hostname"] = hosts.get(worker.node_id, "")
                    yield "WorkerLoadTime", labels, worker.load_ms


def _family(name: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    kind, units = ("counter", COUNTERS) if name in COUNTERS else ("gauge", GAUGES)
    text = f"Torchserve prometheus {kind} metric with unit: {units[name]}"
    family = Metric(name, text, kind)
    for labels, value in samples:
        family.add_sample(name, dict(labels), value)
    return family
