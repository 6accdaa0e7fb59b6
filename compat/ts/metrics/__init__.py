"""Takes the measurements of handlers: `context.metrics`.

Source: TorchServe 0.12 docs/metrics.md and ts/metrics, as an interface.
"""

import bisect
import importlib
import json
import logging
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

logger = logging.getLogger(__name__)

# The buckets of the Prometheus client that TorchServe uses.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

# Clients may choose the values of labels. The room for handlers' metrics is counted in series, so
# the size of a series needs a limit of its own.
MAX_LABEL_CHARS = 256

# Label names and their values, in the order in which the handler gave them.
Labels = tuple[tuple[str, str], ...]

NAMES: dict[str | None, str] = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "percent": "Percent",
    "count": "Count",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "kB": "Kilobytes",
    "B": "Bytes",
    "": "unit",
    None: "unit",
}
_TIMES, _SIZES = ("ms", "s"), ("MB", "kB", "GB", "B")


class MetricTypes(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Units:
    """Holds the names where TorchServe's handlers find them: `Units().units`."""

    def __init__(self) -> None:
        self.units = dict(NAMES)


class MetricsCacheKeyError(KeyError):
    """There is no such metric."""


class MetricsCacheTypeError(TypeError):
    """A name or unit is not text."""


class MetricsCacheValueError(ValueError):
    """There is no such unit."""


class Dimension:
    """Is a label of a metric."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, str]:
        return {"Name": self.name, "Value": self.value}


class Metric:
    """Is one measurement with its labels."""

    def __init__(  # noqa: PLR0917 - TorchServe's order
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: list[Dimension],
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.name = name
        self.value = value
        self.unit = NAMES.get(unit, str(unit))
        self.dimensions = dimensions
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: float) -> None:
        self.value = self.value + value if self.metric_method == "counter" else value

    def __str__(self) -> str:
        labels = ",".join(str(dimension) for dimension in self.dimensions)
        return f"{self.name}.{self.unit}:{self.value}|#{labels}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "MetricName": self.name,
            "Value": self.value,
            "Unit": self.unit,
            "Dimensions": [dimension.to_dict() for dimension in self.dimensions],
        }


class MetricEncoder(json.JSONEncoder):
    """Serves `json.dumps(metric, cls=MetricEncoder)`."""

    def default(self, o: Any) -> Any:
        return o.to_dict() if isinstance(o, Metric | Dimension) else super().default(o)


def get_cpu_usage(pid: str) -> int:
    """Returns the resident memory of a process in bytes (TorchServe's name); 0 when it is gone."""
    psutil = importlib.import_module("psutil")
    try:
        return int(psutil.Process(int(pid)).memory_info().rss)
    except (psutil.Error, ValueError):
        return 0


def check_process_mem_usage(stdin: Iterable[str]) -> list[str]:
    pids = [line.strip() for line in stdin]
    return [f"{pid}:{get_cpu_usage(pid)}" for pid in pids if pid]


@dataclass(slots=True)
class Change:
    """Holds the measurements under one set of labels since the last `take`.

    `value` is the sum for a counter and a histogram, the last value for a gauge; `counts` has a
    histogram's observations by bucket; the last bucket has no bound.
    """

    value: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))


class CachingMetric:
    """Keeps one number per set of labels, so that memory does not grow with requests."""

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.metric_name = metric_name
        self.metric_type = metric_type
        self.redefine(unit, dimension_names)
        self._changes: dict[Labels, Change] = {}
        # Handlers measure in threads of their own, and another thread takes.
        self._lock = threading.Lock()

    def redefine(self, unit: str, dimension_names: Sequence[str] | None) -> None:
        self.unit = NAMES.get(unit, str(unit))
        self.dimension_names = list(dimension_names or ())

    def add_or_update(
        self, value: float, dimension_values: Sequence[str] | None = (), request_id: str = ""
    ) -> None:
        """Records the value under these dimension values, given in the order of the names.

        A value that cannot count is logged and dropped: no prediction fails because of it.
        """
        names, values = self.dimension_names, list(dimension_values or ())
        if len(values) == len(names):
            self.count(value, labels_of(zip(names, values, strict=True)))
        else:
            message = "metric %s has the dimensions %s, but was given the values %s"
            logger.error(message, self.metric_name, names, values)

    def update(
        self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()
    ) -> None:
        """Records the value, and makes these dimensions the metric's own from now on."""
        self.dimension_names = [dimension.name for dimension in dimensions]
        self.add_or_update(value, [dimension.value for dimension in dimensions])

    def take(self) -> dict[Labels, Change]:
        with self._lock:
            changes, self._changes = self._changes, {}
        return changes

    def count(self, value: float, labels: Labels) -> None:
        """Records the value under these labels, whatever the metric's dimensions are."""
        try:
            value = float(value)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value) or (value < 0 and self.metric_type is MetricTypes.COUNTER):
            logger.error("%s is no value of the %s %s", value, self.metric_type, self.metric_name)
            return
        with self._lock:
            change = self._changes.get(labels)
            if change is None:
                change = self._changes[labels] = Change()
            if self.metric_type is MetricTypes.GAUGE:
                change.value = value
                return
            change.value += value
            if self.metric_type is MetricTypes.HISTOGRAM:
                change.counts[bisect.bisect_left(BUCKETS, value)] += 1


def labels_of(pairs: Iterable[tuple[str, object]]) -> Labels:
    # Cut here and not where series are sent: labels that become equal are one set, for which a
    # gauge keeps the last value. JSON may bring half a surrogate pair, which has no UTF-8.
    return tuple(
        (str(name), str(item)[:MAX_LABEL_CHARS].encode("utf-8", "replace").decode())
        for name, item in pairs
    )


_Dimensions = Sequence[Dimension] | None


class MetricsStore:
    """Keeps values by metric. The handler's own dimensions come before the model's name and level.

    Without `request_ids` the level is Error, as in TorchServe; a model that loads has an id.
    """

    def __init__(self, request_ids: Any = None, model_name: str = "") -> None:
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: dict[tuple[str, MetricTypes], CachingMetric] = {}

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Returns the metric of this name and type, redefined with this unit and these dimensions.

        Raises:
            MetricsCacheTypeError: a name or unit is not text.
            ValueError: MetricTypes does not have the type.
        """
        if not isinstance(metric_name, str) or not isinstance(unit, str):
            raise MetricsCacheTypeError(
                f"name and unit of a metric are text, not {metric_name!r}, {unit!r}"
            )
        key = metric_name, MetricTypes(metric_type)
        if (metric := self.cache.get(key)) is None:
            metric = self.cache[key] = CachingMetric(metric_name, unit, dimension_names, key[1])
        metric.redefine(unit, dimension_names)
        return metric

    def get_metric(
        self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER
    ) -> CachingMetric:
        try:
            return self.cache[metric_name, metric_type]
        except KeyError:
            raise MetricsCacheKeyError(
                f"no {metric_type} called {metric_name}: list it in the metrics_config file or "
                "call add_metric_to_cache first"
            ) from None

    def add_metric(  # noqa: PLR0917 - TorchServe's order, here and below
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: _Dimensions = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Records a value of a metric, which is made when it is new. `idx` has no effect."""
        own = {"ModelName": self.model_name, "Level": "Model"}
        if self.request_ids is None:
            own = {"Level": "Error"}
        given = [(dimension.name, dimension.value) for dimension in dimensions or ()]
        labels = [*given, *((label, own[label]) for label in own if label not in dict(given))]
        metric = self.add_metric_to_cache(name, unit, [label for label, _ in labels], metric_type)
        metric.count(value, labels_of(labels))

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: _Dimensions = None
    ) -> None:
        self.add_metric(name, value, "count", idx, dimensions)

    def add_time(  # noqa: PLR0917
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: _Dimensions = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self.add_metric(name, value, _checked(unit, _TIMES), idx, dimensions, metric_type)

    def add_size(  # noqa: PLR0917
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: _Dimensions = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self.add_metric(name, value, _checked(unit, _SIZES), idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: _Dimensions = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(self, name: str, value: float = 1, dimensions: _Dimensions = None) -> None:
        errors = MetricsStore()
        errors.cache = self.cache
        errors.add_metric(name, value, "", None, dimensions)


def _checked(unit: str, known: Sequence[str]) -> str:
    if unit not in known:
        raise MetricsCacheValueError(f"unit must be one of {', '.join(known)}, not {unit!r}")
    return unit
