"""Brings the handler's measurements to Redis, a second after a batch, in a thread of its own.

While a batch runs, the handler only adds numbers up.
"""

import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ts.metrics.caching_metric import BUCKETS, CachingMetric, Change, Labels
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore

from batching.metrics.declared import DeclaredMetric
from batching.metrics.lines import metric_line, model_metric_log
from batching.metrics.series import ABOVE, SUM, Measurement, MetricKind, Series
from batching.store.measurements import HandlerMeasurements
from batching.store.redis_errors import AWAY

log = logging.getLogger(__name__)

REPORT_S = 1.0
# Handlers may also measure in threads of their own, and while a batch runs.
LOOK_S = 10.0
HOSTNAME = "Hostname"


def declare(store: MetricsStore, declared: Sequence[DeclaredMetric]) -> None:
    """Lets handlers find the metrics of the metrics_config file with `get_metric`."""
    for metric in declared:
        kind = MetricTypes(metric.kind.value)
        store.add_metric_to_cache(metric.name, metric.unit, metric.dimensions, kind)


class MetricsReporter:
    """Takes measurements out of a store and records them until `stop`."""

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
        self._may_have_news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Has the measurements until now recorded within a second.

        Without this the thread looks seldom: an idle worker measures nothing.
        """
        if not self._may_have_news.is_set():
            self._may_have_news.set()

    def stop(self) -> None:
        """Records the measurements so far, if Redis answers."""
        self._should_stop.set()
        self._may_have_news.set()
        self._thread.join(2 * REPORT_S)

    def report(self) -> None:
        """Records the measurements since the last call, or keeps them for the next one."""
        for measurement in self._take():
            series, value = measurement.series, measurement.value
            if self._is_logging and series.part in ("", SUM):
                labels = {name: text for name, text in series.labels if name != HOSTNAME}
                model_metric_log.info(
                    metric_line(series.name, value, labels, self._hostname, series.unit)
                )
            is_gauge = series.kind is MetricKind.GAUGE
            self._unsent[series] = value if is_gauge else self._unsent.get(series, 0.0) + value
        if not self._unsent:
            return
        try:
            unsent = [Measurement(series, value) for series, value in self._unsent.items()]
            dropped = self._queue.record(unsent)
        except AWAY as error:
            log.debug("metrics kept for the next second: %s", error)
            return
        self._unsent.clear()
        if dropped:
            self._tell_once("*", f"the model has too many series, {dropped} were dropped")

    def _run(self) -> None:
        while not self._should_stop.wait(REPORT_S):
            self.report()
            if not self._unsent:
                self._may_have_news.wait(LOOK_S)
            self._may_have_news.clear()
        self.report()

    def _take(self) -> Iterator[Measurement]:
        for metric in list(self._store.cache.values()):
            for labels, change in metric.take().items():
                series = self._series(metric, labels)
                if series is not None:
                    yield from _measurements(series, change)

    def _series(self, metric: CachingMetric, labels: Labels) -> Series | None:
        """Returns the series as which the metric is shown; None if it is not shown."""
        declared = self._declared.get(metric.metric_name)
        kind, unit = MetricKind(metric.metric_type.value), metric.unit
        if declared is not None:
            kind, unit = declared.kind, declared.unit
            if kind.value != metric.metric_type or len(labels) != len(declared.dimensions):
                names = ", ".join(declared.dimensions)
                self._tell_once(metric.metric_name, f"metrics_config has it as a {kind} of {names}")
                return None
            values = (value for _, value in labels)
            labels = tuple(zip(declared.dimensions, values, strict=True))
        elif not self._is_showing_all:
            self._tell_once(
                metric.metric_name,
                "not listed in metrics_config, and model_metrics_auto_detect is off",
            )
            return None
        series = Series(metric.metric_name, kind, unit, (*labels, (HOSTNAME, self._hostname)))
        if not series.is_named_well:
            self._tell_once(metric.metric_name, "not a name that Prometheus takes")
            return None
        return series

    def _tell_once(self, name: str, reason: str) -> None:
        if name not in self._told:
            self._told.add(name)
            log.warning("metric %s is not shown: %s", name, reason)


def _measurements(series: Series, change: Change) -> Iterator[Measurement]:
    if series.kind is not MetricKind.HISTOGRAM:
        yield Measurement(series, change.value)
        return
    for bound, count in zip((*map(str, BUCKETS), ABOVE), change.counts, strict=True):
        yield Measurement(replace(series, part=bound), count)
    yield Measurement(replace(series, part=SUM), change.value)
