"""What a comparison of two servers comes to: a row per path, and the first differences."""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ferry.shadow.comparison import Answer, Tolerance, Verdict, compare

_SHARES = (0.5, 0.95, 0.99)
# Percentiles are of so many answers, the last ones: a proxy runs for days.
_KEPT_LATENCIES = 10_000
_MOST_ROWS = 100
_MOST_EXAMPLES = 5
_OTHERS = "all other paths"


@dataclass(slots=True)
class Row:
    """Counts the requests of one method and path. `examples`: the first differences, in words."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    old_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_LATENCIES))
    new_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_LATENCIES))
    examples: list[str] = field(default_factory=list)


class Result:
    """Collects comparisons. `uncompared` counts the other requests, by the reason."""

    def __init__(self, tolerance: Tolerance) -> None:
        self.rows: dict[str, Row] = {}
        self.verdicts: Counter[Verdict] = Counter()
        self.uncompared: Counter[str] = Counter()
        self._tolerance = tolerance

    def compare(self, old: Answer, new: Answer) -> tuple[Verdict, list[str]]:
        """Compares two answers; changes nothing, so that any thread may do it."""
        return compare(old, new, self._tolerance)

    def add(
        self,
        label: str,
        number: int,
        latencies_s: tuple[float, float],
        compared: tuple[Verdict, list[str]],
    ) -> None:
        """Adds what `compare` found of request `number`."""
        verdict, differences = compared
        if label not in self.rows and len(self.rows) >= _MOST_ROWS:
            label = _OTHERS
        row = self.rows.setdefault(label, Row())
        row.verdicts[verdict] += 1
        self.verdicts[verdict] += 1
        if verdict is not Verdict.MISSED:
            row.old_s.append(latencies_s[0])
            row.new_s.append(latencies_s[1])
        if differences and len(row.examples) < _MOST_EXAMPLES:
            row.examples.append(f"request {number}: {'; '.join(differences)}")

    @property
    def compared(self) -> int:
        return self.verdicts.total()

    @property
    def is_same(self) -> bool:
        return self.verdicts[Verdict.SAME] == self.compared

    def summary(self) -> str:
        """Returns the counts in one line."""
        different = self.verdicts[Verdict.STATUS] + self.verdicts[Verdict.BODY]
        parts = [
            f"{self.compared} requests",
            f"{self.verdicts[Verdict.SAME]} the same",
            f"{different} different",
            f"{self.verdicts[Verdict.MISSED]} missed",
        ]
        parts += [f"{count} not compared ({why})" for why, count in self.uncompared.items()]
        return ", ".join(parts)

    def record(self) -> dict[str, Any]:
        """Returns all of it for machines, and for the table: a row per method and path."""
        rows = [
            {
                "request": label,
                "requests": row.verdicts.total(),
                **{verdict.value: row.verdicts[verdict] for verdict in Verdict},
                "oldMs": _percentiles_ms(row.old_s),
                "newMs": _percentiles_ms(row.new_s),
                "differences": row.examples,
            }
            for label, row in sorted(self.rows.items())
        ]
        return {"isSame": self.is_same, "rows": rows, "notCompared": dict(self.uncompared)}


def _percentiles_ms(latencies_s: Sequence[float]) -> list[float]:
    ordered = sorted(latencies_s)
    return [1000 * percentile(ordered, share) for share in _SHARES] if ordered else []


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of the ordered values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
