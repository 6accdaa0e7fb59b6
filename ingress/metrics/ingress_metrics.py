"""Measures an ingress, under our names and under TorchServe's.

prometheus_client's own counters take a lock for each number, and its histograms look through all
buckets: a sixth of what an echo cost the ingress. Here it is an addition or two; prometheus_client
only has the families for the output.
Source of TorchServe's names, labels, units and texts: TorchServe 0.12 docs/metrics.md.
"""

import asyncio
import contextlib
import json
import socket
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from batching.metrics import COUNTERS, GAUGES, HOST_LEVEL, metric_line, metric_log
from batching.models.spec import VersionKey
from batching.process.outputs import dropped_lines
from batching.process.siblings import Siblings
from batching.protocol import BatchTiming
from batching.settings.files import write_atomically
from batching.store.broker import Broker

VERSION_LABELS = ("model", "version")
# The metrics that `metrics_mode=legacy` shows in /metrics.
LEGACY = tuple(name for name in COUNTERS if name.startswith("ts_"))
# Of the last request.
LAST_VALUES = ("QueueTime", "WorkerThreadTime")
_ANSWERS = {2: "Requests2XX", 4: "Requests4XX", 5: "Requests5XX"}

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RECENT = 256
_NO_MODEL = VersionKey("", "")

# Why a batch left: it was full, or its oldest request was old enough. A request that is tried again
# runs alone and counts as late.
FULL, LATE = "full", "late"

# Counters of a version: name, meaning, further label, attribute of `VersionSeries`.
_COUNTERS = (
    ("ferry_requests", "Predictions answered, by HTTP status.", ("code",), "codes"),
    ("ferry_errors", "Predictions that failed, by x-ferry-reason.", ("reason",), "reasons"),
    ("ferry_batches", "Batches run, by why they left: full, or late.", ("release",), "batches"),
    ("ferry_unbatched_batches", "Batches that failed, but not one by one.", (), "unbatched"),
)
_HISTOGRAMS = (
    ("ferry_queue_wait_seconds", "From submit to claim, per request.", "queue_seconds"),
    ("ferry_request_seconds", "From a read body to an answer, per request.", "request_seconds"),
    ("ferry_handler_seconds", "In the handler, per batch.", "handler_seconds"),
    ("ferry_batch_size", "Requests in a batch, per batch.", "batch_size"),
)


class _Distribution:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class VersionSeries:
    """Holds the numbers of one model version; one thread writes, any may read."""

    def __init__(self, *, is_model: bool = True) -> None:
        self.codes: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.batches: Counter[str] = Counter({FULL: 0, LATE: 0} if is_model else {})
        self.unbatched: Counter[str] = Counter({"": 0} if is_model else {})
        self.queue_seconds = _Distribution()
        self.request_seconds = _Distribution()
        self.handler_seconds = _Distribution()
        self.batch_size = _Distribution(_BATCH_SIZES)


class _Sums:
    """Holds TorchServe's counters of one model, by the version in the URL."""

    def __init__(self, model_name: str, version_label: str) -> None:
        self.labels = {"model_name": model_name, "model_version": version_label}
        self.requests = self.latency_us = self.queue_us = 0.0


class VersionMetrics:
    """Counts for one model version and one form of its URL, with or without the version."""

    def __init__(
        self, metrics: "Metrics", key: VersionKey, series: VersionSeries, sums: _Sums
    ) -> None:
        self._metrics = metrics
        self._key = key
        self._series = series
        self._sums = sums

    def count_arrival(self) -> None:
        """Counts a request, which may still be refused."""
        self._sums.requests += 1
        if self._metrics.logged:
            self._metrics.log(LEGACY[0], 1, self._sums.labels)

    def count_answer(
        self,
        status: int,
        seconds: float,
        timing: BatchTiming | None,
        *,
        reason: str = "",
        full_size: int = 1,
    ) -> None:
        """Counts an answered request.

        Args:
            status: of the answer.
            seconds: from the read body to the answer.
            timing: the worker's, if a worker ran it.
            reason: the error's word for machines; empty after a success.
            full_size: how many requests fill a batch of this version.
        """
        series = self._series
        series.codes[status] += 1
        if reason:
            series.reasons[reason] += 1
        series.request_seconds.observe(seconds)
        if timing is None:
            return
        series.queue_seconds.observe(timing.queue_us / 1e6)
        if status < 300:  # noqa: PLR2004  (TorchServe sums over successful requests only)
            self._sums.latency_us += seconds * 1e6
            self._sums.queue_us += timing.queue_us
            self._metrics.last = (seconds, timing)
            if self._metrics.logged:
                self._metrics.log_success(seconds, timing, self._sums.labels)
        if timing.is_first:
            series.handler_seconds.observe(timing.handler_us / 1e6)
            series.batch_size.observe(timing.batch_size)
            series.batches[FULL if timing.batch_size >= full_size else LATE] += 1
            series.unbatched[""] += timing.is_unbatched
            self._metrics.recent_batches.append((time.monotonic(), self._key, full_size, timing))


class Metrics:
    """Holds all numbers of an ingress. Updated on the event loop only, read by any thread.

    `recent_batches` has the last batches: when each left, its version, its full size, its times.
    `last` is the last successful request: how long it took, and its batch's times. Updates of the
    `logged` names go to the log of metrics.
    """

    def __init__(self, logged: Collection[str] = ()) -> None:
        self.logged = frozenset(logged)
        self.hostname = socket.gethostname()
        self.recent_batches: deque[tuple[float, VersionKey, int, BatchTiming]] = deque(
            maxlen=_RECENT
        )
        self.last: tuple[float, BatchTiming] | None = None
        self.series: dict[VersionKey, VersionSeries] = {_NO_MODEL: VersionSeries(is_model=False)}
        self._versions: dict[tuple[VersionKey, str | None], VersionMetrics] = {}
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._answers = dict.fromkeys(_ANSWERS.values(), 0.0)

    def version(self, key: VersionKey, asked_version: str | None) -> VersionMetrics:
        """Returns the version's counters; `asked_version` is the version in the URL, or None."""
        version = self._versions.get((key, asked_version))
        if version is None:
            series = self.series.setdefault(key, VersionSeries())
            # TorchServe labels by the version in the URL.
            label = key.model_name, asked_version or "default"
            sums = self._sums.setdefault(label, _Sums(*label))
            version = VersionMetrics(self, key, series, sums)
            self._versions[key, asked_version] = version
        return version

    def count_unknown(self, status: int, reason: str) -> None:
        """Counts an answer for an unknown model, without labels: the client invents such names."""
        self.series[_NO_MODEL].codes[status] += 1
        self.series[_NO_MODEL].reasons[reason] += 1

    def note_answer(self, status: int, *_: object) -> None:
        """Counts an answer of any port; any status but 2xx and 4xx counts as 5xx."""
        name = _ANSWERS.get(status // 100, "Requests5XX")
        self._answers[name] += 1
        if self.logged:
            self.log(name, 1, HOST_LEVEL)

    def log(self, name: str, value: float, dimensions: Mapping[str, str]) -> None:
        if name in self.logged:
            metric_log.info(metric_line(name, value, dimensions, self.hostname))

    def log_success(self, seconds: float, timing: BatchTiming, labels: Mapping[str, str]) -> None:
        for name, value in self._last_ms().items():
            self.log(name, value, HOST_LEVEL)
        self.log(LEGACY[1], seconds * 1e6, labels)
        self.log(LEGACY[2], timing.queue_us, labels)

    def collect(self) -> Iterator[Metric]:
        all_series = list(self.series.items())
        for name, meaning, labels, attribute in _COUNTERS:
            counter = CounterMetricFamily(name, meaning, labels=(*VERSION_LABELS, *labels))
            for key, series in all_series:
                for label, count in list(getattr(series, attribute).items()):
                    counter.add_metric((*key, str(label))[: 2 + len(labels)], count)
            yield counter
        for name, meaning, attribute in _HISTOGRAMS:
            histogram = HistogramMetricFamily(name, meaning, labels=VERSION_LABELS)
            for key, series in all_series[1:]:
                values = getattr(series, attribute)
                bounds = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
                buckets = list(zip(bounds, accumulate(values.counts), strict=True))
                histogram.add_metric(key, buckets, values.sum)
            yield histogram
        yield from self._torchserves()

    def _torchserves(self) -> Iterator[Metric]:
        host = {**HOST_LEVEL, "Hostname": self.hostname}
        for name, value in self._answers.items():
            yield torchserve_family(name, [(host, value)])
        all_sums = list(self._sums.values())
        for name, attribute in zip(LEGACY, ("requests", "latency_us", "queue_us"), strict=True):
            samples = [
                ({**sums.labels, "hostname": self.hostname}, getattr(sums, attribute))
                for sums in all_sums
            ]
            yield torchserve_family(name, samples)
        last_ms = self._last_ms()
        for name in LAST_VALUES:
            yield torchserve_family(name, [(host, last_ms[name])] if last_ms else [])

    def _last_ms(self) -> dict[str, float]:
        """Returns how long the last request waited, and how long its way in and out took, in ms."""
        if self.last is None:
            return {}
        seconds, timing = self.last
        queue_ms = timing.queue_us / 1000
        way_ms = max(0.0, seconds * 1000 - queue_ms - timing.handler_us / 1000)
        return dict(zip(LAST_VALUES, (queue_ms, way_ms), strict=True))

    def keep_only(self, registered: Collection[VersionKey]) -> None:
        """Removes the series of all other versions, so that /metrics stays small."""
        kept = {_NO_MODEL, *registered}
        self.series = {key: series for key, series in self.series.items() if key in kept}
        self._versions = {key: it for key, it in self._versions.items() if key[0] in kept}
        labels = {(key.model_name, asked or "default") for key, asked in self._versions}
        self._sums = {label: sums for label, sums in self._sums.items() if label in labels}


def broker_families(broker: Broker) -> Iterator[Metric]:
    meaning = "Predictions that this ingress has accepted and not answered."
    yield GaugeMetricFamily("ferry_open_requests", meaning, value=broker.waiting)
    meaning = "Requests that Redis had lost and that this ingress submitted again."
    resubmitted = CounterMetricFamily("ferry_resubmitted_requests", meaning, labels=VERSION_LABELS)
    for key, count in broker.resubmitted.copy().items():
        resubmitted.add_metric(key, count)
    yield resubmitted
    for name, ways in (("request", broker.memory.requests), ("answer", broker.memory.answers)):
        meaning = f"Bodies of {name}s over 16 KiB, by their way: arena (shared memory) or redis."
        bodies = CounterMetricFamily(f"ferry_{name}_bodies", meaning, labels=["way"])
        for way, count in ways.items():
            bodies.add_metric([way], count)
        yield bodies
    meaning = "Lines of log that standard output and error of an ingress did not take."
    yield CounterMetricFamily("ferry_ingress_lines_dropped", meaning, value=dropped_lines())


def torchserve_family(name: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    """Returns a family of TorchServe's own, without prometheus_client's `_total`."""
    is_counter = name in COUNTERS
    family = handler_family(
        name, "counter" if is_counter else "gauge", (COUNTERS if is_counter else GAUGES)[name]
    )
    for labels, value in samples:
        family.add_sample(name, dict(labels), value)
    return family


def handler_family(name: str, kind: str, unit: str) -> Metric:
    """Returns a family without samples, described as TorchServe describes its own."""
    return Metric(name, f"Torchserve prometheus {kind} metric with unit: {unit}", kind)


class HostNumbers:
    """Adds up the numbers of a host's ingress processes, whichever of them is scraped (ADR 0021).

    Each process writes its numbers into a file when a sibling is scraped, and a restarted process
    continues with its predecessor's. So no sum falls when a process dies, which a scraper would
    take for a restart of all: only what a killed process counted after the last scrape is missing.
    """

    def __init__(self, own: Callable[[], Iterable[Metric]], siblings: Siblings) -> None:
        self._own = own
        self._siblings = siblings
        self._before: list[Metric] = []
        self._server: asyncio.Server | None = None
        # Of two scrapes at a time, the one with older numbers must not write last.
        self._is_writing = threading.Lock()

    async def start(self) -> None:
        if self._siblings.count > 1:
            self._before = self._read(self._siblings.number, is_alive=False)
            self._server = await self._siblings.listen(self._write)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def collect(self) -> list[Metric]:
        """Returns the families with the sums over all processes. Blocks."""
        if self._siblings.count == 1:
            return list(self._own())
        answered = self._siblings.ask()
        families = self._write()
        for number in self._siblings.others:
            families += self._read(number, is_alive=number in answered)
        meaning = "Ingress processes of this host; the last numbers of silent ones may be old."
        processes = GaugeMetricFamily("ferry_ingress_processes", meaning, labels=("state",))
        processes.add_metric(("answering",), 1 + len(answered))
        processes.add_metric(("silent",), len(self._siblings.others) - len(answered))
        return [*_added_up(families), processes]

    def _write(self) -> list[Metric]:
        with self._is_writing:
            families = _added_up([*self._own(), *self._before])
            document = [
                (it.name, it.documentation, it.type, [sample[:3] for sample in it.samples])
                for it in families
            ]
            with contextlib.suppress(OSError):  # a full disk; the file keeps its last numbers
                write_atomically(self._file(self._siblings.number), json.dumps(document))
            return families

    def _read(self, number: int, *, is_alive: bool) -> list[Metric]:
        """Returns the families in this process's file; without gauges unless it `is_alive`."""
        try:
            document = json.loads(self._file(number).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        families = []
        for name, documentation, kind, samples in document:
            if is_alive or kind != "gauge":
                family = Metric(name, documentation, kind)
                for sample in samples:
                    family.add_sample(*sample)
                families.append(family)
        return families

    def _file(self, number: int) -> Path:
        return self._siblings.folder / f"{number}.json"


def _added_up(families: Iterable[Metric]) -> list[Metric]:
    """Returns one family per name: sums, and the first of TorchServe's last values."""
    totals: dict[str, Metric] = {}
    for family in families:
        empty = Metric(family.name, family.documentation, family.type)
        total = totals.setdefault(family.name, empty)
        values = {(it.name, tuple(it.labels.items())): it.value for it in total.samples}
        for name, labels, value, *_ in family.samples:
            key = name, tuple(labels.items())
            if key not in values or family.name not in LAST_VALUES:
                values[key] = values.get(key, 0) + value
        total.samples = []
        for (name, pairs), value in values.items():
            total.add_sample(name, dict(pairs), value)
    return list(totals.values())
