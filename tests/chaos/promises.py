"""Collects what was measured against each promise of docs/reliability.md, for the end of a run.

A row of its table names its promises in a comment, as readers have no use for the names:
`<!--F1 again, F1 answers-->`.
"""

import os
import re
from collections import defaultdict
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import records
from benchmarks.measuring.records import origin, told, with_block, write_record

RESULTS = records.RESULTS / "chaos.json"
DOCUMENT = records.ROOT / "docs" / "reliability.md"
ROW = re.compile(r"^(\| <!--(.+?)-->([^|]*) \| ([^|]*) \| )[^|]* \|$", re.MULTILINE)
NOTHING = "\N{EN DASH}"

# A promise's name and what was measured -> whether it was kept. The key is here and not in a
# conftest.py, of which pytest may import a copy for each folder.
Kept = dict[tuple[str, str], bool]
KEPT = pytest.StashKey[Kept]()
# Name -> the fault, and what has to hold.
PROMISES = {
    name: (fault, bar)
    for _, names, fault, bar in ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    for name in names.split(", ")
}


def is_long() -> bool:
    """Returns whether this is the long form, `make chaos`."""
    return os.environ.get("CHAOS_LONG", "") == "1"


def show(kept: Kept) -> None:
    """Prints the table of promises: bar, measurement and verdict."""
    table = Table("", "fault", "bar", "measured", "verdict", title="Promises under fire")
    for (name, measured), is_kept in sorted(kept.items()):
        verdict = "[green]kept" if is_kept else "[bold red]BROKEN"
        table.add_row(name, *PROMISES.get(name, ("", "")), measured, verdict)
    Console(width=150).print(table)


def save(kept: Kept) -> None:
    """Writes the same as JSON, with commit and machine, and into docs/reliability.md."""
    promises = [
        {"name": name, "measured": measured, "kept": is_kept}
        for (name, measured), is_kept in sorted(kept.items(), key=lambda one: one[0][0])
    ]
    document = {**origin(), "form": "long" if is_long() else "short", "promises": promises}
    write_record(document, RESULTS)
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), document), "utf-8")


def with_table(text: str, document: dict[str, Any]) -> str:
    """Puts what was measured into the last cell of each row that names its promises."""
    measured = defaultdict(list)
    for one in document["promises"]:
        verdict = "" if one["kept"] else "**broken:** "
        measured[one["name"]].append(verdict + _readable(one["measured"]))

    def filled(row: re.Match[str]) -> str:
        found = [value for name in row[2].split(", ") for value in measured[name]]
        return f"{row[1]}{'; '.join(found) or NOTHING} |"

    return with_block(ROW.sub(filled, text), "chaos", f"`make chaos` at {told(document)}.")


def _readable(measured: str) -> str:
    """Returns `{'200': 42, 'nodes': 3}` as `42 x 200, 3 nodes`."""

    def counted(match: re.Match[str]) -> str:
        return f"{match[2]} {'x ' if match[1][0].isdigit() else ''}{match[1]}"

    return re.sub(r"[{}'()]", "", re.sub(r"'([^']+)': (\d+)", counted, measured))
