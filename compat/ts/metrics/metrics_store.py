"""Takes the measurements of a worker's handler: `context.metrics`.

Source: TorchServe 0.12 docs/metrics.md and ts/metrics, as an interface.
"""

from collections.abc import Sequence
from typing import Any

from ts.metrics.caching_metric import CachingMetric, labels_of
from ts.metrics.dimension import Dimension
from ts.metrics.metric_cache_errors import (
    MetricsCacheKeyError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from ts.metrics.metric_type_enum import MetricTypes

_TIMES, _SIZES = ("ms", "s"), ("MB", "kB", "GB", "B")

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
        if key not in self.cache:
            self.cache[key] = CachingMetric(metric_name, unit, dimension_names, key[1])
        metric = self.cache[key]
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
        self._record(name, value, unit, dimensions, own, metric_type)

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
        self._record(name, value, "", dimensions, {"Level": "Error"}, MetricTypes.COUNTER)

    def _record(  # noqa: PLR0917
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: _Dimensions,
        own: dict[str, str],
        metric_type: MetricTypes,
    ) -> None:
        given = [(dimension.name, dimension.value) for dimension in dimensions or ()]
        labels = [*given, *((label, own[label]) for label in own if label not in dict(given))]
        metric = self.add_metric_to_cache(name, unit, [label for label, _ in labels], metric_type)
        metric.count(value, labels_of(labels))


def _checked(unit: str, known: Sequence[str]) -> str:
    if unit not in known:
        raise MetricsCacheValueError(f"unit must be one of {', '.join(known)}, not {unit!r}")
    return unit
