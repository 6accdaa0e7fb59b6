"""`context.metrics`: what the handlers of one worker have measured.

Source: TorchServe 0.12 docs/metrics.md and ts/metrics, as an interface.
"""

from collections.abc import Sequence
from typing import Any

from ts.metrics.caching_metric import CachingMetric
from ts.metrics.dimension import Dimension
from ts.metrics.metric_cache_errors import (
    MetricsCacheKeyError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from ts.metrics.metric_type_enum import MetricTypes


class MetricsStore:
    """Values by metric. Dimensions of the handler's own come before the model's name and level.

    Without `request_ids` the level is Error, as there; while the model loads, there is one.
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
        """The metric of this name and type, with this unit and these dimensions from now on.

        Raises:
            MetricsCacheTypeError: a name or unit that is no text.
            ValueError: another type than MetricTypes has.
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
            MetricsCacheKeyError: there is none.
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
        """One value; the metric is made when it is new. `idx` is TorchServe's: values add up."""
        labels = list(dimensions or ())
        known = {dimension.name for dimension in labels}
        labels += [one for one in self._default_dimensions() if one.name not in known]
        names = [dimension.name for dimension in labels]
        metric = self._found_or_made(name, unit, names, metric_type)
        metric.update(value, "", labels)

    def add_counter(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
    ) -> None:
        """`value` is added to a counter."""
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
        """A duration in `ms` or `s`.

        Raises:
            MetricsCacheValueError: another unit.
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
        """A size in `B`, `kB`, `MB` or `GB`.

        Raises:
            MetricsCacheValueError: another unit.
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
        """A share of a hundred."""
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(
        self, name: str, value: float = 1, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        """Errors outside of a request."""
        labels = list(dimensions or ())
        if all(dimension.name != "Level" for dimension in labels):
            labels.append(Dimension("Level", "Error"))
        names = [dimension.name for dimension in labels]
        self._found_or_made(name, "", names).update(value, "", labels)

    def _default_dimensions(self) -> list[Dimension]:
        if self.request_ids is None:
            return [Dimension("Level", "Error")]
        return [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]


def _check_unit(unit: str, known: Sequence[str]) -> None:
    if unit not in known:
        raise MetricsCacheValueError(f"unit must be one of {', '.join(known)}, not {unit!r}")
