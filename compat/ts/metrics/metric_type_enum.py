"""Names the kinds of metrics."""

from enum import StrEnum


class MetricTypes(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
