"""What an ingress measures.

prometheus_client's own counters take a lock for each number, and its histograms look through all
buckets: a sixth of what an echo cost the ingress. Here it is an addition or two; prometheus_client
has the families that are written out.
"""

import asyncio
import logging
import socket
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from batching.errors import StoreUnavailable
from batching.models.spec import VersionKey
from batching.process.daemon_thread import in_daemon_thread
from batching.process.outputs import dropped_lines
from batching.protocol import BatchTiming
from batching.store.registry.registry import Registry
from ingress.metrics.queue_metrics import VERSION_LABELS
from ingress.metrics.torchserve_metrics import TorchServeMetrics, VersionTotals

log = logging.getLogger(__name__)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RECENT = 256
_NO_MODEL = VersionKey("", "")
# Long enough for scrapes, which are seconds apart, and for a version that is registered again soon.
_LOOK_S = 300.0

# Why a batch left: it was full, or its oldest request was old enough. A request that is tried again
# runs alone and counts as late.
FULL, LATE = "full", "late"

# Counters of a version: name, text, further label, attribute of `VersionSeries`.
_COUNTERS = (
    ("ferry_requests", "Predictions answered, by HTTP status.", ("code",), "codes"),
    (
        "ferry_errors",
        "Predictions answered with an error, by the word in x-ferry-reason.",
        ("reason",),
        "reasons",
    ),
    ("ferry_batches", "Batches run, by why they left: full, or late.", ("release",), "batches"),
    (
        "ferry_unbatched_batches",
        "Batches that failed as a whole, and whose requests then succeeded one by one.",
        (),
        "unbatched",
    ),
)
_HISTOGRAMS = (
    ("ferry_queue_wait_seconds", "From submit to claim, per request.", "queue_seconds"),
    ("ferry_request_seconds", "From a read body to an answer, per request.", "request_seconds"),
    ("ferry_handler_seconds", "In the handler, per batch.", "handler_seconds"),
    ("ferry_batch_size", "Requests in a batch, per batch.", "batch_size"),
)


class _Distribution:
    """Observed values, by bucket."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Adds a value to the first bucket whose bound is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class VersionSeries:
    """Holds what was counted of one model version, by one thread; read by any."""

    def __init__(self, *, is_model: bool = True) -> None:
        self.codes: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.batches: Counter[str] = Counter({FULL: 0, LATE: 0} if is_model else {})
        self.unbatched: Counter[str] = Counter({"": 0} if is_model else {})
        self.queue_seconds = _Distribution()
        self.request_seconds = _Distribution()
        self.handler_seconds = _Distribution()
        self.batch_size = _Distribution(_BATCH_SIZES)


class VersionMetrics:
    """Counts for one model version, as one kind of URL addresses it."""

    def __init__(
        self,
        key: VersionKey,
        series: VersionSeries,
        totals: VersionTotals,
        recent: deque[tuple[float, VersionKey, int, BatchTiming]],
    ) -> None:
        self._key = key
        self._series = series
        self.totals = totals
        self._recent = recent

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
            reason: the word for what went wrong; empty when nothing did.
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
            self.totals.count_success(seconds, timing)
        if timing.is_first:
            series.handler_seconds.observe(timing.handler_us / 1e6)
            series.batch_size.observe(timing.batch_size)
            series.batches[FULL if timing.batch_size >= full_size else LATE] += 1
            series.unbatched[""] += timing.is_unbatched
            self._recent.append((time.monotonic(), self._key, full_size, timing))


class Metrics:
    """Everything an ingress measures. Updated on the event loop only, read by any thread.

    `recent_batches` are the last ones: when they left, of which version, and what fills a batch.
    """

    def __init__(self, *, is_logging: bool = False, unlogged: Sequence[str] = ()) -> None:
        self.recent_batches: deque[tuple[float, VersionKey, int, BatchTiming]] = deque(
            maxlen=_RECENT
        )
        self.torchserve = TorchServeMetrics(
            socket.gethostname(), is_logging=is_logging, unlogged=unlogged
        )
        self.series: dict[VersionKey, VersionSeries] = {_NO_MODEL: VersionSeries(is_model=False)}
        self._versions: dict[tuple[VersionKey, str | None], VersionMetrics] = {}

    def version(self, key: VersionKey, asked_version: str | None) -> VersionMetrics:
        """Returns the series of this version; `asked_version` is what the URL said, or None."""
        version = self._versions.get((key, asked_version))
        if version is None:
            series = self.series.setdefault(key, VersionSeries())
            # TorchServe labels by what the URL said.
            totals = self.torchserve.totals(key.model_name, asked_version or "default")
            version = VersionMetrics(key, series, totals, self.recent_batches)
            self._versions[key, asked_version] = version
        return version

    def count_unknown(self, status: int, reason: str) -> None:
        """Counts an answer for an unknown model, without labels: such names are the client's."""
        self.series[_NO_MODEL].codes[status] += 1
        self.series[_NO_MODEL].reasons[reason] += 1

    def collect(self) -> Iterator[Metric]:
        """Yields what was counted here."""
        all_series = list(self.series.items())
        for name, text, labels, attribute in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=(*VERSION_LABELS, *labels))
            for key, series in all_series:
                for label, count in list(getattr(series, attribute).items()):
                    counter.add_metric((*key, str(label))[: 2 + len(labels)], count)
            yield counter
        for name, text, attribute in _HISTOGRAMS:
            histogram = HistogramMetricFamily(name, text, labels=VERSION_LABELS)
            for key, series in all_series[1:]:
                values = getattr(series, attribute)
                bounds = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
                buckets = list(zip(bounds, accumulate(values.counts), strict=True))
                histogram.add_metric(key, buckets, values.sum)
            yield histogram
        yield from self.torchserve.collect()

    def versions(self) -> set[VersionKey]:
        """Returns the versions that have series."""
        return self.series.keys() - {_NO_MODEL}

    def forget(self, key: VersionKey) -> None:
        """Removes the version's series; later requests begin new ones."""
        del self.series[key]
        self._versions = {known: one for known, one in self._versions.items() if known[0] != key}
        self.torchserve.keep({(k.model_name, asked or "default") for k, asked in self._versions})

    async def forget_unregistered(self, registry: Registry, interval_s: float = _LOOK_S) -> None:
        """Keeps /metrics from growing for ever where each build is a version; until cancelled.

        A version loses its series when it was not registered at two looks in a row.
        """
        missing: set[VersionKey] = set()
        while True:
            await asyncio.sleep(interval_s)
            missing_before, missing = missing, set()
            try:
                specs = await in_daemon_thread(registry.specs)
            except StoreUnavailable:
                continue  # Redis may come back empty, until the nodes fill it
            missing = self.versions() - {spec.key for spec in specs}
            for key in missing & missing_before:
                self.forget(key)
                log.info("forgot metrics of model=%s version=%s", *key)


def broker_families(
    count_open: Callable[[], int], count_resubmitted: Callable[[], Mapping[VersionKey, int]]
) -> Iterable[Metric]:
    """Yields what is only read when it is asked for, of this process."""
    yield GaugeMetricFamily(
        "ferry_open_requests",
        "Predictions that this ingress has accepted and not answered.",
        value=count_open(),
    )
    resubmitted = CounterMetricFamily(
        "ferry_resubmitted_requests",
        "Requests that Redis had lost and that this ingress submitted again.",
        labels=VERSION_LABELS,
    )
    for key, count in count_resubmitted().items():
        resubmitted.add_metric(key, count)
    yield resubmitted
    text = "Lines of log that standard output and error of an ingress did not take."
    yield CounterMetricFamily("ferry_ingress_lines_dropped", text, value=dropped_lines())
