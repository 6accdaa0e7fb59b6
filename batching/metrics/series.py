"""Carries handlers' metrics from a worker to an ingress.

A worker adds its measurements to one hash per model version, with the replies of each batch, and
only what has changed. An ingress reads the hash when it is scraped.
"""

import json
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Self


class MetricKind(StrEnum):
    """A counter adds up, a gauge is set, a histogram collects."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# The parts of a histogram beside its buckets.
SUM = "sum"
ABOVE = "+Inf"


@dataclass(frozen=True, slots=True)
class Series:
    """One number that handlers measure.

    `part` is for histograms: the sum, or a bucket's upper bound as text. Counts of buckets are not
    cumulative.
    """

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[tuple[str, str], ...]
    part: str = ""

    def to_field(self) -> str:
        return _field_of(self)

    @classmethod
    def from_field(cls, field: str | bytes) -> Self:
        """Parses what `to_field` wrote.

        Raises:
            ValueError: the field is something else.
        """
        try:
            name, kind, unit, labels, part = json.loads(field)
            pairs = tuple((str(label), str(value)) for label, value in labels)
            series = cls(str(name), MetricKind(kind), str(unit), pairs, str(part))
        # RecursionError: brackets within brackets.
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError("not a field of handlers' metrics") from error
        if not series.is_named_well:
            raise ValueError(f"not the name of a metric or of its labels: {series}")
        if not series.has_known_part:
            raise ValueError(f"no part of a {series.kind}: {series.part!r}")
        return series

    @property
    def is_named_well(self) -> bool:
        """Returns whether a scraper accepts the name and the labels' names."""
        return _NAME.fullmatch(self.name) is not None and all(
            _LABEL.fullmatch(label) for label, _ in self.labels
        )

    @property
    def has_known_part(self) -> bool:
        """Returns whether a metric of this kind has such a part; bounds of buckets are numbers."""
        if self.kind is not MetricKind.HISTOGRAM:
            return not self.part
        return self.part in {SUM, ABOVE} or _is_bound(self.part)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A series and its new value (a gauge) or what is added to it (all others)."""

    series: Series
    value: float


@lru_cache(maxsize=4096)
def _field_of(series: Series) -> str:
    record = [series.name, series.kind.value, series.unit, series.labels, series.part]
    return json.dumps(record, separators=(",", ":"))


def _is_bound(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
