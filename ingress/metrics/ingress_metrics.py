"""What an ingress measures.

The series of a model version are looked up once: a request then costs a few additions.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from batching.errors import StoreUnavailable
from batching.models.spec import VersionKey
from batching.process.daemon_thread import in_daemon_thread
from batching.process.outputs import dropped_lines
from batching.protocol import BatchTiming
from batching.store.registry.registry import Registry
from ingress.metrics.queue_metrics import VERSION_LABELS
from ingress.metrics.request_series import Count, Counter, Histogram
from ingress.metrics.torchserve_metrics import TorchServeMetrics

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

F = TypeVar("F", Counter, Histogram)


class VersionMetrics:
    """The series of one model version, as one kind of URL addresses it."""

    def __init__(self, metrics: "Metrics", key: VersionKey, asked_version: str | None) -> None:
        self._codes: dict[int, Count] = {}
        self._metrics = metrics
        self._key = key
        self._request_seconds = metrics.request_seconds.labels(*key)
        self._queue_seconds = metrics.queue_seconds.labels(*key)
        self._handler_seconds = metrics.handler_seconds.labels(*key)
        self._batch_size = metrics.batch_size.labels(*key)
        self._full = metrics.batches.labels(*key, FULL)
        self._late = metrics.batches.labels(*key, LATE)
        self._unbatched = metrics.unbatched.labels(*key)
        # TorchServe labels by what the URL said.
        self.totals = metrics.torchserve.totals(key.model_name, asked_version or "default")

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
        counter = self._codes.get(status)
        if counter is None:
            counter = self._codes[status] = self._metrics.requests.labels(*self._key, str(status))
        counter.inc()
        if reason:
            self._metrics.errors.labels(*self._key, reason).inc()
        self._request_seconds.observe(seconds)
        if timing is None:
            return
        self._queue_seconds.observe(timing.queue_us / 1e6)
        if status < 300:  # noqa: PLR2004  (TorchServe sums over successful requests only)
            self.totals.count_success(seconds, timing)
        if timing.is_first:
            self._handler_seconds.observe(timing.handler_us / 1e6)
            self._batch_size.observe(timing.batch_size)
            left = time.monotonic(), self._key, full_size, timing
            self._metrics.recent_batches.append(left)
            (self._full if timing.batch_size >= full_size else self._late).inc()
            if timing.is_unbatched:
                self._unbatched.inc()


class Metrics:
    """Everything an ingress measures. Updated on the event loop only, read by any thread.

    `recent_batches` are the last ones: when they left, of which version, and what fills a batch.
    """

    def __init__(self, *, is_logging: bool = False, unlogged: Sequence[str] = ()) -> None:
        self.recent_batches: deque[tuple[float, VersionKey, int, BatchTiming]] = deque(
            maxlen=_RECENT
        )
        self._families: list[Counter | Histogram] = []
        self.requests = self._counter(
            "ferry_requests", "Predictions answered, by HTTP status.", "code"
        )
        self.errors = self._counter(
            "ferry_errors",
            "Predictions answered with an error, by the word in x-ferry-reason.",
            "reason",
        )
        self.batches = self._counter(
            "ferry_batches", "Batches run, by why they left: full, or late.", "release"
        )
        self.unbatched = self._counter(
            "ferry_unbatched_batches",
            "Batches that failed as a whole, and whose requests then succeeded one by one.",
        )
        self.queue_seconds = self._histogram(
            "ferry_queue_wait_seconds", "From submit to claim, per request."
        )
        self.request_seconds = self._histogram(
            "ferry_request_seconds", "From a read body to an answer, per request."
        )
        self.handler_seconds = self._histogram(
            "ferry_handler_seconds", "In the handler, per batch."
        )
        self.batch_size = self._histogram(
            "ferry_batch_size", "Requests in a batch, per batch.", _BATCH_SIZES
        )
        self.torchserve = TorchServeMetrics(
            socket.gethostname(), is_logging=is_logging, unlogged=unlogged
        )
        self._versions: dict[tuple[VersionKey, str | None], VersionMetrics] = {}

    def version(self, key: VersionKey, asked_version: str | None) -> VersionMetrics:
        """Returns the series of this version; `asked_version` is what the URL said, or None."""
        series = self._versions.get((key, asked_version))
        if series is None:
            series = self._versions[key, asked_version] = VersionMetrics(self, key, asked_version)
        return series

    def versions(self) -> frozenset[VersionKey]:
        """Returns the versions that have series."""
        return frozenset(key for key, _ in self._versions)

    def count_unknown(self, status: int, reason: str) -> None:
        """Counts an answer for an unknown model, without labels: such names are the client's."""
        self.requests.labels(*_NO_MODEL, str(status)).inc()
        self.errors.labels(*_NO_MODEL, reason).inc()

    def collect(self) -> Iterator[Metric]:
        """Yields what was counted here."""
        for family in self._families:
            yield family.collect()
        yield from self.torchserve.collect()

    def forget(self, key: VersionKey) -> None:
        """Removes the version's series; later requests begin new ones."""
        for family in self._families:
            family.remove(key)
        self._versions = {known: one for known, one in self._versions.items() if known[0] != key}
        self.torchserve.keep({(k.model_name, asked or "default") for k, asked in self._versions})

    async def forget_unregistered(self, registry: Registry, interval_s: float = _LOOK_S) -> None:
        """Keeps /metrics from growing for ever where each build is a version; until cancelled.

        A version loses its series when it was not registered at two looks in a row.
        """
        missing: frozenset[VersionKey] = frozenset()
        while True:
            await asyncio.sleep(interval_s)
            missing_before = missing
            try:
                specs = await in_daemon_thread(registry.specs)
            except StoreUnavailable:
                missing = frozenset()  # Redis may come back empty, until the nodes fill it
                continue
            missing = self.versions() - {spec.key for spec in specs}
            for key in missing & missing_before:
                self.forget(key)
                log.info("forgot metrics of model=%s version=%s", *key)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._added(Counter(name, text, (*VERSION_LABELS, *labels)))

    def _histogram(self, name: str, text: str, bounds: Sequence[float] = _SECONDS) -> Histogram:
        return self._added(Histogram(name, text, VERSION_LABELS, bounds))

    def _added(self, family: F) -> F:
        self._families.append(family)
        return family


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
