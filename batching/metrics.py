"""Names and logs the metrics of TorchServe's handlers and logs, and reads metrics_config.

Source: TorchServe 0.12 docs/metrics.md and ts/configs/metrics.yaml, as an interface.
"""

import datetime
import functools
import logging
import re
import socket
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from batching.models.spec import VersionKey
from batching.models.statuses import HostSample
from batching.settings.files import load_yaml
from batching.settings.settings import SettingsError

# Operators of TorchServe look for these names.
metric_log = logging.getLogger("TS_METRICS")
model_metric_log = logging.getLogger("MODEL_METRICS")

# The folder of MODEL_METRICS_FILE, if log files are written; by default with the other logs.
METRICS_VARIABLE = "METRICS_LOCATION"
MODEL_METRICS_FILE = "model_metrics.log"

COUNTERS = {
    "Requests2XX": "Count",
    "Requests4XX": "Count",
    "Requests5XX": "Count",
    "ts_inference_requests_total": "Count",
    "ts_inference_latency_microseconds": "Microseconds",
    "ts_queue_latency_microseconds": "Microseconds",
}
GAUGES = {
    "QueueTime": "Milliseconds",
    "WorkerThreadTime": "Milliseconds",
    "WorkerLoadTime": "Milliseconds",
    "CPUUtilization": "Percent",
    "MemoryUsed": "Megabytes",
    "MemoryAvailable": "Megabytes",
    "MemoryUtilization": "Percent",
    "DiskUsage": "Gigabytes",
    "DiskAvailable": "Gigabytes",
    "DiskUtilization": "Percent",
    "GPUMemoryUtilization": "Percent",
    "GPUMemoryUsed": "Megabytes",
    "GPUUtilization": "Percent",
}
HOST_LEVEL = {"Level": "Host"}

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# The parts of a histogram beside its buckets.
SUM, ABOVE = "sum", "+Inf"
_HISTOGRAM_PART = re.compile(r"sum|\+Inf|[0-9]+(\.[0-9]+)?")


class MetricKind(StrEnum):
    """Names the kinds of metrics: a counter adds up, a gauge is set, a histogram collects."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Series(msgspec.Struct, frozen=True, array_like=True):
    """Names one number that handlers measure."""

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[tuple[str, str], ...]
    # Of a histogram: the sum, or a bucket's upper bound as text. Counts are not cumulative.
    part: str = ""

    def to_field(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_field(cls, field: str | bytes) -> Self:
        """Parses the output of `to_field`; raises ValueError if the field is something else."""
        series = msgspec.json.decode(field, type=cls)
        is_histogram = series.kind is MetricKind.HISTOGRAM
        if not is_named_well(series) or not (
            _HISTOGRAM_PART.fullmatch(series.part) if is_histogram else not series.part
        ):
            raise ValueError(f"no scraper accepts {series}")
        return series


@functools.lru_cache(maxsize=4096)
def is_named_well(series: Series) -> bool:
    """Returns whether a scraper accepts the name and the labels' names."""
    return _NAME.fullmatch(series.name) is not None and all(
        _LABEL.fullmatch(label) for label, _ in series.labels
    )


class Measurement(NamedTuple):
    """Holds a series, and its new value (a gauge) or increment (all others)."""

    series: Series
    value: float


class DeclaredMetric(NamedTuple):
    """Describes a metric that a handler may emit; `dimensions` are its labels, in order."""

    name: str
    kind: MetricKind
    unit: str
    dimensions: tuple[str, ...]


# The metrics of every TorchServe handler; shown unless a file lists others.
DEFAULT_METRICS = tuple(
    DeclaredMetric(name, MetricKind.GAUGE, "ms", ("ModelName", "Level"))
    for name in ("HandlerTime", "PredictionTime")
)


def read_metrics_config(path: Path | None) -> tuple[DeclaredMetric, ...]:
    """Returns the `model_metrics` of the file; without a file, the default ones.

    It raises SettingsError if the file cannot be read, or has another form.
    """
    if path is None:
        return DEFAULT_METRICS
    try:
        section = load_yaml(path.read_text(encoding="utf-8"))["model_metrics"] or {}
        return tuple(
            DeclaredMetric(
                str(it["name"]), kind, str(it["unit"]), tuple(map(str, it["dimensions"] or ()))
            )
            for kind in MetricKind
            for it in section.get(kind.value) or ()
        )
    except OSError as error:
        raise SettingsError(f"metrics_config: cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"metrics_config: {path} must have `model_metrics` with lists `counter`, `gauge` and "
            f"`histogram` of name, unit and dimensions ({type(error).__name__}: {error})"
        ) from error


def metric_line(
    name: str, value: float, dimensions: Mapping[str, str], hostname: str, unit: str = ""
) -> str:
    """Returns TorchServe's log line for an update; TorchServe's own metrics need no `unit`."""
    unit = unit or COUNTERS.get(name) or GAUGES[name]
    labels = ",".join(f"{label}:{value}" for label, value in dimensions.items())
    timestamp = int(datetime.datetime.now(datetime.UTC).timestamp())
    return f"{name}.{unit}:{float(value)}|#{labels}|#hostname:{hostname},timestamp:{timestamp}"


def host_dimensions(sample: HostSample) -> dict[str, str]:
    return {**HOST_LEVEL, **({"DeviceId": sample.device_id} if sample.device_id else {})}


def worker_dimensions(worker_id: str, key: VersionKey) -> dict[str, str]:
    return {"WorkerName": f"W-{worker_id}-{key.model_name}_{key.model_version}", **HOST_LEVEL}


def log_load_time(worker_id: str, key: VersionKey, load_ms: int) -> None:
    dimensions = worker_dimensions(worker_id, key)
    metric_log.info(metric_line("WorkerLoadTime", load_ms, dimensions, socket.gethostname()))
