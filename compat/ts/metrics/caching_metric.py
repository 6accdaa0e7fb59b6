"""Keeps a metric's values for each set of labels, until they are taken."""

import bisect
import logging
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.unit import full_name

logger = logging.getLogger(__name__)

# The buckets of the Prometheus client that TorchServe uses.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

# Clients may choose the values of labels. The room for handlers' metrics is counted in series, so
# the size of a series needs a limit of its own.
MAX_LABEL_CHARS = 256

# Label names and their values, in the order in which the handler gave them.
Labels = tuple[tuple[str, str], ...]


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
        """Redefines the metric for a handler; this overrides the metrics_config file."""
        self.unit = full_name(unit)
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
