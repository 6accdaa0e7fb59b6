"""Reports the comparison of two servers: a row per path, and the first differences."""

import json
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ferry_moving.comparison import ComparedAnswer, Tolerance, Verdict
from ferry_moving.recording import RecordedRequest

_SHARES = (0.5, 0.95, 0.99)
# Percentiles are of the last answers only, as a proxy may run for days.
_KEPT_LATENCIES = 10_000
_MOST_ROWS = 100
_MOST_EXAMPLES = 5
_OTHERS = "all other paths"
_HEADS = (
    *("", "requests", "same", "status", "body", "missed"),
    *("old p50", "p95", "p99 ms", "new p50", "p95", "p99 ms"),
)
# Wider than any result: rows are never cut, as they are copied and piped.
_WHOLE = 10_000


@dataclass(slots=True)
class PathRow:
    """Counts the requests of one method and path. `examples`: the first differences, in words."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    old_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_LATENCIES))
    new_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_LATENCIES))
    examples: list[str] = field(default_factory=list)


class Result:
    """Collects comparisons. `uncompared` counts the other requests, by the reason."""

    def __init__(self, tolerance: Tolerance) -> None:
        self.tolerance = tolerance
        self.rows: dict[str, PathRow] = {}
        self.verdicts: Counter[Verdict] = Counter()
        self.uncompared: Counter[str] = Counter()

    def add(
        self,
        request: RecordedRequest,
        old: ComparedAnswer,
        new: ComparedAnswer,
        compared: tuple[Verdict, list[str]],
    ) -> None:
        """Adds the result of `compare` for this request."""
        verdict, differences = compared
        label = f"{request.method} {request.path.partition('?')[0]}"
        if label not in self.rows and len(self.rows) >= _MOST_ROWS:
            label = _OTHERS
        row = self.rows.setdefault(label, PathRow())
        row.verdicts[verdict] += 1
        self.verdicts[verdict] += 1
        if verdict is not Verdict.MISSED:
            row.old_s.append(old.latency_s)
            row.new_s.append(new.latency_s)
        if differences and len(row.examples) < _MOST_EXAMPLES:
            row.examples.append(f"request {request.number}: {'; '.join(differences)}")

    def summary(self) -> str:
        """Returns the counts in one line."""
        parts = [
            f"{self.verdicts.total()} requests",
            f"{self.verdicts[Verdict.SAME]} the same",
            f"{self.verdicts[Verdict.STATUS] + self.verdicts[Verdict.BODY]} different",
            f"{self.verdicts[Verdict.MISSED]} missed",
        ]
        parts += [f"{count} not compared ({why})" for why, count in self.uncompared.items()]
        return ", ".join(parts)

    def record(self) -> dict[str, Any]:
        """Returns the report as JSON: a row per method and path."""
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
        is_same = self.verdicts[Verdict.SAME] == self.verdicts.total()
        return {"isSame": is_same, "rows": rows, "notCompared": dict(self.uncompared)}

    def show(self, *, as_json: bool) -> None:
        """Prints the record, or a table of it and the differences."""
        record = self.record()
        if as_json:
            click.echo(json.dumps(record, indent=2))
            return
        console = Console(highlight=False, width=_WHOLE)
        grid = Table(*_HEADS, box=None, pad_edge=False)
        for column in grid.columns[1:]:
            column.justify = "right"
        for row in record["rows"]:
            cells = [str(row[column]) for column in ("requests", *Verdict)]
            for side in (row["oldMs"], row["newMs"]):
                cells += [f"{ms:.1f}" for ms in side] or ["-"] * len(_SHARES)
            grid.add_row(escape(row["request"]), *cells)
        console.print(grid)
        for row in record["rows"]:
            for example in row["differences"]:
                console.print(escape(f"{row['request']}, {example}"))
        console.print(f"\n{escape(self.summary())}.")


def _percentiles_ms(latencies_s: Sequence[float]) -> list[float]:
    """Returns the percentiles of _SHARES; [] without latencies."""
    ordered = sorted(latencies_s)
    count = len(ordered)
    return [1000 * ordered[max(0, math.ceil(share * count) - 1)] for share in _SHARES if count]
