"""Metric objects of an ingress, and the log set-up of every process.

Metrics live in their own registry, passed explicitly, so that two servers in one process (tests)
do not share counters. Children of labelled metrics are looked up once per model version: a request
then costs a few additions.
"""

import logging
import socket
import sys
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from batching.errors import StoreUnavailable
from batching.model_spec import ModelSpec, VersionKey
from batching.protocol import BatchTiming
from batching.store.registry import Registry

LOG_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_VERSION_LABELS = ("model", "version")
_NO_MODEL = VersionKey("", "")


def configure_logging(level: str) -> None:
    """Every logger writes one line per event to standard error, times in UTC."""
    formatter = logging.Formatter(LOG_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class VersionMetrics:
    """The metric children of one model version, as one kind of URL addresses it."""

    def __init__(self, metrics: "Metrics", key: VersionKey, asked_version: str | None) -> None:
        self._codes: dict[int, Counter] = {}
        self._requests = metrics.requests
        self._key = key
        self._request_seconds = metrics.request_seconds.labels(*key)
        self._queue_seconds = metrics.queue_seconds.labels(*key)
        self._handler_seconds = metrics.handler_seconds.labels(*key)
        self._batch_size = metrics.batch_size.labels(*key)
        # TorchServe labels by what the URL said (contract 3.3).
        self._totals = metrics.torchserve.totals(key.model_name, asked_version or "default")

    def count_arrival(self) -> None:
        """The request is counted before it is queued, refused ones too."""
        self._totals.requests += 1

    def count_answer(self, status: int, seconds: float, timing: BatchTiming | None) -> None:
        """The request was answered; `timing` is the worker's, if a worker ran it."""
        counter = self._codes.get(status)
        if counter is None:
            counter = self._codes[status] = self._requests.labels(*self._key, str(status))
        counter.inc()
        self._request_seconds.observe(seconds)
        if timing is None:
            return
        self._queue_seconds.observe(timing.queue_us / 1e6)
        if status < 300:  # noqa: PLR2004  (TorchServe sums over successful requests only)
            self._totals.latency_us += seconds * 1e6
            self._totals.queue_us += timing.queue_us
        if timing.is_first:
            self._handler_seconds.observe(timing.handler_us / 1e6)
            self._batch_size.observe(timing.batch_size)


class Metrics:
    """Everything an ingress measures. Updated on the event loop only, read by any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ferry_requests",
            "Predictions answered, by HTTP status.",
            (*_VERSION_LABELS, "code"),
            registry=self.registry,
        )
        self.open_requests = Gauge(
            "ferry_open_requests",
            "Predictions that this ingress has accepted and not answered.",
            registry=self.registry,
        )
        self.queue_seconds = self._histogram(
            "ferry_queue_wait_seconds", "From submit to claim, per request.", _SECONDS
        )
        self.request_seconds = self._histogram(
            "ferry_request_seconds", "From a read body to an answer, per request.", _SECONDS
        )
        self.handler_seconds = self._histogram(
            "ferry_handler_seconds", "In the handler, per batch.", _SECONDS
        )
        self.batch_size = self._histogram(
            "ferry_batch_size", "Requests in a batch, per batch.", _BATCH_SIZES
        )
        self.torchserve = TorchServeCounters(socket.gethostname())
        self.registry.register(self.torchserve)
        self._versions: dict[tuple[VersionKey, str | None], VersionMetrics] = {}

    def watch(self, registry: Registry, count_open: Callable[[], int]) -> None:
        """Queue depths and workers are read from this model registry at each scrape."""
        self.registry.register(RegistryCollector(registry))
        self.open_requests.set_function(count_open)

    def version(self, key: VersionKey, asked_version: str | None) -> VersionMetrics:
        """The children for this version; `asked_version` is what the URL said, or None."""
        found = self._versions.get((key, asked_version))
        if found is None:
            found = self._versions[key, asked_version] = VersionMetrics(self, key, asked_version)
        return found

    def count_unknown(self, status: int) -> None:
        """A request was answered whose model is not known; no label, names are the client's."""
        self.requests.labels(*_NO_MODEL, str(status)).inc()

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(
            name, text, _VERSION_LABELS, buckets=tuple(buckets), registry=self.registry
        )


class _Totals:
    __slots__ = ("latency_us", "queue_us", "requests")

    def __init__(self) -> None:
        self.requests = 0.0
        self.latency_us = 0.0
        self.queue_us = 0.0


class TorchServeCounters(Collector):
    """The three counters that TorchServe's dashboards read, under their old names.

    prometheus_client would append `_total` to two of them, so they are plain sums here.
    """

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._totals: dict[tuple[str, str], _Totals] = {}

    def totals(self, model_name: str, version_label: str) -> _Totals:
        """The sums of one model version."""
        return self._totals.setdefault((model_name, version_label), _Totals())

    def collect(self) -> Iterator[Metric]:
        """The three families."""
        totals = list(self._totals.items())
        for name, unit, values in (
            ("ts_inference_requests_total", "Count", [t.requests for _, t in totals]),
            (
                "ts_inference_latency_microseconds",
                "Microseconds",
                [t.latency_us for _, t in totals],
            ),
            ("ts_queue_latency_microseconds", "Microseconds", [t.queue_us for _, t in totals]),
        ):
            text = f"Torchserve prometheus counter metric with unit: {unit}"
            family = Metric(name, text, "counter")
            for ((model_name, version), _), value in zip(totals, values, strict=True):
                labels = {
                    "model_name": model_name,
                    "model_version": version,
                    "hostname": self._hostname,
                }
                family.add_sample(name, labels, value)
            yield family


class RegistryCollector(Collector):
    """Queue depths and workers, asked of Redis at each scrape; nothing while Redis is away."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering this collector does not ask Redis."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Two families."""
        depth = GaugeMetricFamily(
            "ferry_queue_depth", "Requests waiting for a worker.", labels=_VERSION_LABELS
        )
        workers = GaugeMetricFamily(
            "ferry_workers", "Worker processes of live nodes.", labels=(*_VERSION_LABELS, "state")
        )
        try:
            for entry in self._registry.snapshot().values():
                for spec in entry.versions.values():
                    self._add(spec, depth, workers)
        except StoreUnavailable:
            return
        yield depth
        yield workers

    def _add(self, spec: ModelSpec, depth: GaugeMetricFamily, workers: GaugeMetricFamily) -> None:
        depth.add_metric(spec.key, self._registry.queue(spec).waiting)
        states = Tally(worker.state.value for worker in self._registry.workers(spec.key))
        for state, count in sorted(states.items()):
            workers.add_metric((*spec.key, state), count)
