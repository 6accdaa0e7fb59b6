"""What an ingress measures.

Metrics live in their own registry, so that two servers in one process do not share counters. The
series of a model version are looked up once: a request then costs a few additions.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Gauge

from batching.models.spec import VersionKey
from batching.protocol import BatchTiming
from batching.store.registry.registry import Registry
from ingress.metrics.queue_metrics import (
    VERSION_LABELS,
    LogCollector,
    QueueCollector,
    ResubmissionCollector,
)
from ingress.metrics.request_series import Count, Counter, Histogram
from ingress.metrics.torchserve_metrics import NodeMetrics, TorchServeMetrics

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RECENT = 256
_NO_MODEL = VersionKey("", "")

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

    `registry` has what this process has counted, `store_registry` what any process reads in Redis.
    `recent_batches` are the last ones: when they left, of which version, and what fills a batch.
    """

    def __init__(self, *, is_logging: bool = False, unlogged: Collection[str] = ()) -> None:
        # Collectors have no names before they are asked, as some of them ask Redis.
        self.registry = CollectorRegistry(auto_describe=False)
        self.store_registry = CollectorRegistry(auto_describe=False)
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
        self.unbatched = self._added(
            Counter(
                "ferry_unbatched_batches",
                "Batches that failed as a whole, and whose requests then succeeded one by one.",
                VERSION_LABELS,
            )
        )
        self.open_requests = Gauge(
            "ferry_open_requests",
            "Predictions that this ingress has accepted and not answered.",
            registry=self.registry,
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
        self.registry.register(self.torchserve)
        self._versions: dict[tuple[VersionKey, str | None], VersionMetrics] = {}

    def watch(
        self,
        registry: Registry,
        count_open: Callable[[], int],
        count_resubmitted: Callable[[], Mapping[VersionKey, int]],
    ) -> None:
        """Adds what is read at each scrape: queues, workers and Redis, from this model registry."""
        self.store_registry.register(NodeMetrics(registry))
        self.store_registry.register(QueueCollector(registry))
        self.registry.register(ResubmissionCollector(count_resubmitted))
        self.registry.register(LogCollector())
        self.open_requests.set_function(count_open)

    def version(self, key: VersionKey, asked_version: str | None) -> VersionMetrics:
        """Returns the series of this version; `asked_version` is what the URL said, or None."""
        found = self._versions.get((key, asked_version))
        if found is None:
            found = self._versions[key, asked_version] = VersionMetrics(self, key, asked_version)
        return found

    def versions(self) -> frozenset[VersionKey]:
        """Returns the versions that have series."""
        return frozenset(key for key, _ in self._versions)

    def forget(self, key: VersionKey) -> None:
        """Removes the version's series; later requests begin new ones."""
        for family in self._families:
            family.remove(key)
        self._versions = {known: one for known, one in self._versions.items() if known[0] != key}
        self.torchserve.keep({(k.model_name, asked or "default") for k, asked in self._versions})

    def count_unknown(self, status: int, reason: str) -> None:
        """Counts an answer for an unknown model, without labels: such names are the client's."""
        self.requests.labels(*_NO_MODEL, str(status)).inc()
        self.errors.labels(*_NO_MODEL, reason).inc()

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return self._added(Counter(name, text, (*VERSION_LABELS, label)))

    def _histogram(self, name: str, text: str, bounds: Sequence[float] = _SECONDS) -> Histogram:
        return self._added(Histogram(name, text, VERSION_LABELS, bounds))

    def _added(self, family: F) -> F:
        self.registry.register(family)
        self._families.append(family)
        return family
