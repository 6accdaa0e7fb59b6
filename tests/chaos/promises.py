"""Collects what was measured against each promise, for the table at the end of a run."""

import os
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks import records
from benchmarks.records import origin, told, with_block, write_record

RESULTS = records.RESULTS / "chaos.json"
DOCUMENT = records.ROOT / "docs" / "reliability.md"


@dataclass(frozen=True)
class Promise:
    row: str
    promise: str
    bar: str
    measured: str


# Here and not in a conftest.py, of which pytest may import a copy for each folder.
KEPT = pytest.StashKey[dict[Promise, bool]]()


def is_long() -> bool:
    """Returns whether this is the long form, `make chaos`."""
    return os.environ.get("CHAOS_LONG", "") == "1"


def show(kept: dict[Promise, bool]) -> None:
    """Prints the table of promises: bar, measurement and verdict."""
    table = Table("", "promise", "bar", "measured", "verdict", title="Promises under fire")
    for promise in sorted(kept, key=lambda one: (len(one.row), one.row)):
        verdict = "[green]kept" if kept[promise] else "[bold red]BROKEN"
        table.add_row(promise.row, promise.promise, promise.bar, promise.measured, verdict)
    Console(width=150).print(table)


def save(kept: dict[Promise, bool]) -> None:
    """Writes the same as JSON, with commit and machine, and into docs/reliability.md."""
    document = {
        **origin(),
        "form": "long" if is_long() else "short",
        "promises": [
            {**asdict(promise), "kept": is_kept}
            for promise, is_kept in sorted(kept.items(), key=lambda one: one[0].row)
        ],
    }
    write_record(document, RESULTS)
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), document), "utf-8")


def with_table(text: str, document: dict[str, Any]) -> str:
    """Puts what was measured between the two marks of the text."""
    return with_block(text, "chaos", _markdown(document))


def _markdown(document: dict[str, Any]) -> str:
    rows = sorted(document["promises"], key=lambda one: (len(one["row"]), one["row"]))
    lines = [
        f"`make chaos` at {told(document)}:",
        "",
        "| | Promise | Bar | Measured | |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['row']} | {row['promise']} | {row['bar']} | {row['measured']} "
        f"| {'kept' if row['kept'] else '**broken**'} |"
        for row in rows
    ]
    return "\n".join(lines)
