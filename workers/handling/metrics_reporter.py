"""Brings the handler's measurements to Redis, with the replies of their batch.

While a batch runs, the handler only adds numbers up.
"""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from logging.handlers import WatchedFileHandler
from pathlib import Path

import msgspec
from ts.metrics import BUCKETS, CachingMetric, Labels, MetricsStore

from batching.metrics import (
    ABOVE,
    METRICS_VARIABLE,
    MODEL_METRICS_FILE,
    SUM,
    DeclaredMetric,
    Measurement,
    MetricKind,
    Series,
    is_named_well,
    metric_line,
    model_metric_log,
)
from batching.process.logs import LineFormatter
from batching.settings.settings import Settings

log = logging.getLogger(__name__)

HOSTNAME = "Hostname"
_OWN_HOST = socket.gethostname()


@dataclass
class MetricsReporter:
    """Takes measurements out of a store, which handlers' threads may fill at any time."""

    store: MetricsStore
    declared: Sequence[DeclaredMetric]
    is_showing_all: bool
    is_logging: bool = False
    _unsent: dict[Series, float] = field(default_factory=dict, init=False)
    _warned: set[str] = field(default_factory=set, init=False)

    @contextlib.contextmanager
    def unsent(self) -> Iterator[list[Measurement]]:
        """Yields the measurements that have not been sent, to be sent in the `with` block.

        If the block raises, they are yielded again, with what comes next.
        """
        self._collect()
        yield [Measurement(series, value) for series, value in self._unsent.items()]
        self._unsent.clear()

    def _collect(self) -> None:
        """Adds what was measured since the last call, and logs it."""
        for metric in list(self.store.cache.values()):
            for labels, change in metric.take().items():
                if (series := self._series(metric, labels)) is None:
                    continue
                if self.is_logging:
                    shown = {name: text for name, text in series.labels if name != HOSTNAME}
                    line = metric_line(series.name, change.value, shown, _OWN_HOST, series.unit)
                    model_metric_log.info(line)
                if series.kind is MetricKind.GAUGE:
                    self._unsent[series] = change.value
                elif series.kind is MetricKind.COUNTER:
                    self._add(series, change.value)
                else:
                    self._add(msgspec.structs.replace(series, part=SUM), change.value)
                    bounds = (*map(str, BUCKETS), ABOVE)
                    for bound, count in zip(bounds, change.counts, strict=True):
                        self._add(msgspec.structs.replace(series, part=bound), count)

    def _add(self, series: Series, value: float) -> None:
        self._unsent[series] = self._unsent.get(series, 0.0) + value

    def _series(self, metric: CachingMetric, labels: Labels) -> Series | None:
        declared = next((one for one in self.declared if one.name == metric.metric_name), None)
        kind, unit, why_not = MetricKind(metric.metric_type.value), metric.unit, ""
        if declared is None:
            if not self.is_showing_all:
                why_not = "not listed in metrics_config, and model_metrics_auto_detect is off"
        elif declared.kind != kind or len(labels) != len(declared.dimensions):
            names = ", ".join(declared.dimensions)
            why_not = f"metrics_config has it as a {declared.kind} of {names}"
        else:
            unit = declared.unit
            values = [value for _, value in labels]
            labels = tuple(zip(declared.dimensions, values, strict=True))
        series = Series(metric.metric_name, kind, unit, (*labels, (HOSTNAME, _OWN_HOST)))
        if not why_not and not is_named_well(series):
            why_not = "not a name that Prometheus takes"
        if why_not and series.name not in self._warned:
            self._warned.add(series.name)
            log.warning("metric %s is not shown: %s", series.name, why_not)
        return None if why_not else series


class MetricsFile(WatchedFileHandler):
    """Appends handlers' metrics to TorchServe's file, as other workers do; the supervisor rolls it.

    The console has the same lines, so a failure to write is reported only once.
    """

    def __init__(self, settings: Settings) -> None:
        folder = Path(os.environ.get(METRICS_VARIABLE) or settings.log_location)
        super().__init__(folder / MODEL_METRICS_FILE, delay=True)
        self.setFormatter(LineFormatter({}))
        self._has_complained = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own)
        if not self._has_complained:
            self._has_complained = True
            log.warning("cannot write %s: %s", self.baseFilename, sys.exc_info()[1])
