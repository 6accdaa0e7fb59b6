"""Brings the handler's measurements to Redis: with the replies of the batch that they are of.

While a batch runs, the handler only adds numbers up. A thread takes what no batch takes along.
"""

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from logging.handlers import WatchedFileHandler
from pathlib import Path

import msgspec
from ts.metrics.caching_metric import BUCKETS, CachingMetric, Labels
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore

from batching.metrics import (
    ABOVE,
    METRICS_VARIABLE,
    MODEL_METRICS_FILE,
    SUM,
    DeclaredMetric,
    Measurement,
    MetricKind,
    Series,
    metric_line,
    model_metric_log,
)
from batching.process.logs import LineFormatter
from batching.settings.settings import Settings
from batching.store.measurements import HandlerMeasurements
from batching.store.redis_errors import AWAY

log = logging.getLogger(__name__)

# Handlers may also measure in threads of their own, and while they are loaded.
LOOK_S = 10.0
STOP_S = 2.0
HOSTNAME = "Hostname"


def declare(store: MetricsStore, declared: Sequence[DeclaredMetric]) -> None:
    """Lets handlers find the metrics of the metrics_config file with `get_metric`."""
    for metric in declared:
        kind = MetricTypes(metric.kind.value)
        store.add_metric_to_cache(metric.name, metric.unit, metric.dimensions, kind)


class MetricsReporter:
    """Takes measurements out of a store, for a caller of `unsent` and for a thread of its own."""

    def __init__(
        self,
        store: MetricsStore,
        queue: HandlerMeasurements,
        declared: Sequence[DeclaredMetric],
        *,
        is_showing_all: bool,
        is_logging: bool = False,
    ) -> None:
        self._store = store
        self._queue = queue
        self._declared = {metric.name: metric for metric in declared}
        self._is_showing_all = is_showing_all
        self._is_logging = is_logging
        self._hostname = socket.gethostname()
        self._unsent: dict[Series, float] = {}
        self._told: set[str] = set()
        self._should_stop = threading.Event()
        self._is_sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Records the measurements of loading, then every few seconds what is left over."""
        with contextlib.suppress(*AWAY):
            self._queue.prepare()
        self.report()
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()
        self._thread.join(STOP_S)

    def report(self) -> None:
        """Records the measurements that are unsent, or keeps them for the next time."""
        with contextlib.suppress(*AWAY), self.unsent() as measurements:
            if measurements:
                self._queue.record(measurements)

    @contextlib.contextmanager
    def unsent(self) -> Iterator[list[Measurement]]:
        """Gives what has not been sent, to be sent in the with block.

        If that raises, the same is given again with what comes next. Nothing is given while another
        thread sends: no reply waits for it.
        """
        if not self._is_sending.acquire(blocking=False):
            yield []
            return
        try:
            self._collect()
            yield [Measurement(series, value) for series, value in self._unsent.items()]
            self._unsent.clear()
        finally:
            self._is_sending.release()

    def _run(self) -> None:
        while not self._should_stop.wait(LOOK_S):
            self.report()
        self.report()

    def _collect(self) -> None:
        """Adds what was measured since the last time to what is unsent, and logs it."""
        for series, value in self._take():
            if self._is_logging and series.part in ("", SUM):
                labels = {name: text for name, text in series.labels if name != HOSTNAME}
                model_metric_log.info(
                    metric_line(series.name, value, labels, self._hostname, series.unit)
                )
            is_gauge = series.kind is MetricKind.GAUGE
            self._unsent[series] = value if is_gauge else self._unsent.get(series, 0.0) + value

    def _take(self) -> Iterator[tuple[Series, float]]:
        for metric in list(self._store.cache.values()):
            for labels, change in metric.take().items():
                series = self._series(metric, labels)
                if series is None:
                    continue
                if series.kind is not MetricKind.HISTOGRAM:
                    yield series, change.value
                    continue
                for bound, count in zip((*map(str, BUCKETS), ABOVE), change.counts, strict=True):
                    yield msgspec.structs.replace(series, part=bound), count
                yield msgspec.structs.replace(series, part=SUM), change.value

    def _series(self, metric: CachingMetric, labels: Labels) -> Series | None:
        declared = self._declared.get(metric.metric_name)
        kind, unit, why_not = MetricKind(metric.metric_type.value), metric.unit, ""
        if declared is not None:
            if declared.kind != kind or len(labels) != len(declared.dimensions):
                names = ", ".join(declared.dimensions)
                why_not = f"metrics_config has it as a {declared.kind} of {names}"
            unit = declared.unit
            labels = tuple(
                (name, text)
                for name, (_, text) in zip(declared.dimensions, labels, strict=not why_not)
            )
        elif not self._is_showing_all:
            why_not = "not listed in metrics_config, and model_metrics_auto_detect is off"
        series = Series(metric.metric_name, kind, unit, (*labels, (HOSTNAME, self._hostname)))
        if not series.is_named_well:
            why_not = why_not or "not a name that Prometheus takes"
        if why_not and series.name not in self._told:
            self._told.add(series.name)
            log.warning("metric %s is not shown: %s", series.name, why_not)
        return None if why_not else series


class MetricsFile(WatchedFileHandler):
    """Appends handlers' metrics to TorchServe's file, before the replies are sent.

    Other workers append to it, too, and the supervisor rolls it. The console has the same lines, so
    one that the file does not take is only said once.
    """

    def __init__(self, settings: Settings) -> None:
        folder = Path(os.environ.get(METRICS_VARIABLE) or settings.log_location)
        super().__init__(folder / MODEL_METRICS_FILE, delay=True)
        self.setFormatter(LineFormatter({}))
        self._is_said = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own)
        if not self._is_said:
            self._is_said = True
            log.warning("cannot write %s: %s", self.baseFilename, sys.exc_info()[1])
