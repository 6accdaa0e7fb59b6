"""A metric and its current value for each set of labels."""

import logging
from collections.abc import Sequence

from ts.metrics.dimension import Dimension
from ts.metrics.metric import UNITS
from ts.metrics.metric_type_enum import MetricTypes

logger = logging.getLogger(__name__)


class CachingMetric:
    """Keeps one number per set of dimension values, so that memory does not grow with requests.

    That is the sum for a counter, the last value for a gauge or a histogram.
    """

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str],
        metric_type: MetricTypes,
    ) -> None:
        self.metric_name = metric_name
        self.unit = UNITS.get(unit, unit)
        self.dimension_names = list(dimension_names)
        self.metric_type = metric_type
        self.values: dict[tuple[str, ...], float] = {}

    def add_or_update(
        self, value: float, dimension_values: Sequence[str] = (), request_id: str = ""
    ) -> None:
        """The value counts for these dimension values, given in the order of the names.

        Raises:
            ValueError: more or fewer dimension values than names.
        """
        if len(dimension_values) != len(self.dimension_names):
            raise ValueError(
                f"{self.metric_name} has the dimensions {self.dimension_names}, "
                f"but was given {len(dimension_values)} values"
            )
        key = tuple(str(item) for item in dimension_values)
        is_counter = self.metric_type is MetricTypes.COUNTER
        self.values[key] = self.values.get(key, 0) + value if is_counter else value
        logger.debug("%s.%s:%s %s %s", self.metric_name, self.unit, value, key, request_id)

    def update(
        self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()
    ) -> None:
        """The same with dimensions as objects."""
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)
