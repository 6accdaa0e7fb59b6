"""Holds a single measurement with its labels."""

from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.unit import full_name


class Metric:
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
        self.unit = full_name(unit)
        self.dimensions = dimensions
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: float) -> None:
        """Adds to a counter, replaces anything else."""
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
