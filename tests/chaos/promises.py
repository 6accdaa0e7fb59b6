"""Collects what was measured against each promise, for the table at the end of a run."""

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "chaos.json"
DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- measured: written by make chaos -->\n", "<!-- end of measured -->\n"


@dataclass(frozen=True)
class Promise:
    row: str
    promise: str
    bar: str
    measured: str


def is_long() -> bool:
    """Whether this is the long form, `make chaos`."""
    return os.environ.get("CHAOS_LONG", "") == "1"


def show(kept: dict[Promise, bool]) -> None:
    """The table of promises: what was to be, what was measured, and the verdict."""
    table = Table("", "promise", "bar", "measured", "verdict", title="Promises under fire")
    for promise in sorted(kept, key=lambda one: (len(one.row), one.row)):
        verdict = "[green]kept" if kept[promise] else "[bold red]BROKEN"
        table.add_row(promise.row, promise.promise, promise.bar, promise.measured, verdict)
    Console(width=150).print(table)


def save(kept: dict[Promise, bool]) -> None:
    """The same as JSON, with commit and machine, and as a table in docs/reliability.md."""
    RESULTS.parent.mkdir(exist_ok=True)
    document = {
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "is_clean": not _git("status", "--porcelain", "--untracked-files=no"),
        "machine": {
            "cpus": os.cpu_count(),
            "processor": _processor(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "form": "long" if is_long() else "short",
        "promises": [
            {**asdict(promise), "kept": is_kept}
            for promise, is_kept in sorted(kept.items(), key=lambda one: one[0].row)
        ],
    }
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), document), "utf-8")


def with_table(text: str, document: dict[str, Any]) -> str:
    """The text with what was measured between its two marks."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + _markdown(document) + END + rest.partition(END)[2]


def _markdown(document: dict[str, Any]) -> str:
    machine = document["machine"]
    rows = sorted(document["promises"], key=lambda one: (len(one["row"]), one["row"]))
    lines = [
        f"`make chaos` at {document['commit']} on {machine['cpus']} cores "
        f"({machine['processor']}), Python {machine['python']}:",
        "",
        "| | Promise | Bar | Measured | |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['row']} | {row['promise']} | {row['bar']} | {row['measured']} "
        f"| {'kept' if row['kept'] else '**broken**'} |"
        for row in rows
    ]
    return "\n".join([*lines, "", ""])


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
