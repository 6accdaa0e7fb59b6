"""`context.metrics`: the measurements of the handlers of one worker.

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


class MetricsStore:
    """Values by metric. The handler's own dimensions come before the model's name and level.

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
        metric = self._found_or_made(metric_name, unit, dimension_names, metric_type)
        metric.redefine(unit, dimension_names)
        return metric

    def _found_or_made(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        if not isinstance(metric_name, str) or not isinstance(unit, str):
            raise MetricsCacheTypeError(
                f"name and unit of a metric are text, not {metric_name!r}, {unit!r}"
            )
        metric_type = MetricTypes(metric_type)
        key = (metric_name, metric_type)
        if key not in self.cache:
            self.cache[key] = CachingMetric(metric_name, unit, dimension_names, metric_type)
        return self.cache[key]

    def get_metric(
        self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER
    ) -> CachingMetric:
        """Returns the metric of this name and type.

        Raises:
            MetricsCacheKeyError: there is no such metric.
        """
        try:
            return self.cache[metric_name, metric_type]
        except KeyError:
            raise MetricsCacheKeyError(
                f"no {metric_type} called {metric_name}: list it in the metrics_config file or "
                "call add_metric_to_cache first"
            ) from None

    def add_metric(  # noqa: PLR0917 - TorchServe's order
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Records a value of a metric, which is made when it is new. `idx` has no effect."""
        labels = _completed(dimensions, self._default_dimensions())
        metric = self._found_or_made(name, unit, [label.name for label in labels], metric_type)
        metric.count(value, labels_of((label.name, label.value) for label in labels))

    def add_counter(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
    ) -> None:
        self.add_metric(name, value, "count", idx, dimensions, MetricTypes.COUNTER)

    def add_time(  # noqa: PLR0917 - TorchServe's order
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Records a duration.

        Raises:
            MetricsCacheValueError: the unit is not `ms` or `s`.
        """
        _check_unit(unit, ("ms", "s"))
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_size(  # noqa: PLR0917 - TorchServe's order
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Records a size.

        Raises:
            MetricsCacheValueError: the unit is not `B`, `kB`, `MB` or `GB`.
        """
        _check_unit(unit, ("MB", "kB", "GB", "B"))
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(
        self, name: str, value: float = 1, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        """Counts errors outside of a request."""
        labels = _completed(dimensions, [Dimension("Level", "Error")])
        metric = self._found_or_made(name, "", [label.name for label in labels])
        metric.count(value, labels_of((label.name, label.value) for label in labels))

    def _default_dimensions(self) -> list[Dimension]:
        if self.request_ids is None:
            return [Dimension("Level", "Error")]
        return [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]


def _completed(
    dimensions: Sequence[Dimension] | None, defaults: Sequence[Dimension]
) -> list[Dimension]:
    labels = list(dimensions or ())
    known = {dimension.name for dimension in labels}
    return labels + [one for one in defaults if one.name not in known]


def _check_unit(unit: str, known: Sequence[str]) -> None:
    if unit not in known:
        raise MetricsCacheValueError(f"unit must be one of {', '.join(known)}, not {unit!r}")
