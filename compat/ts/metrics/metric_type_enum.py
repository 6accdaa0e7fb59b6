"""Kinds of metrics."""

from enum import StrEnum


class MetricTypes(StrEnum):
    """A counter adds up, a gauge is set, a histogram collects."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
