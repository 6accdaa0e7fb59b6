"""What a comparison found: pairs, medians, verdict; as a table and as JSON."""

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.load import LoadReport

ROOT = Path(__file__).resolve().parent.parent
OURS, THEIRS = "torchferry", "TorchServe"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the bar is reached, and why, in one line."""

    is_reached: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs of each server, in the order they were made; run i of both is pair i."""

    runs: Mapping[str, Sequence[LoadReport]]
    bar_per_s: float

    def median_per_s(self, name: str) -> float | None:
        """The median of that server's requests/s; None when it was not measured."""
        runs = self.runs.get(name)
        return statistics.median(run.requests_per_s for run in runs) if runs else None

    def ratios(self) -> list[float]:
        """torchferry's requests/s over TorchServe's, pair by pair; empty when one is missing."""
        pairs = zip(self.runs.get(OURS, ()), self.runs.get(THEIRS, ()), strict=False)
        return [round(ours.requests_per_s / theirs.requests_per_s, 3) for ours, theirs in pairs]

    def verdict(self) -> Verdict | None:
        """Reached: no error, and torchferry's median at the bar or at TorchServe's median.

        None when torchferry was not measured.
        """
        ours, theirs = self.median_per_s(OURS), self.median_per_s(THEIRS)
        if ours is None:
            return None
        errors = sum(run.errors for run in self.runs[OURS])
        if errors:
            return Verdict(False, f"torchferry answered {errors} requests with an error")
        if ours >= self.bar_per_s:
            return Verdict(True, f"{ours:.0f}/s, the bar is {self.bar_per_s:.0f}/s")
        if theirs is not None and ours >= theirs:
            return Verdict(True, f"{ours:.0f}/s, TorchServe's median is {theirs:.0f}/s")
        others = f" and TorchServe's {theirs:.0f}/s" if theirs is not None else ""
        return Verdict(False, f"{ours:.0f}/s is below the bar of {self.bar_per_s:.0f}/s{others}")


def print_comparison(console: Console, comparison: Comparison, title: str) -> None:
    """The table and the verdict are on the console."""
    table = Table(title=title, title_justify="left")
    table.add_column("run")
    table.add_column("server")
    for heading in ("requests/s", "p50 ms", "p99 ms", "errors", "ratio"):
        table.add_column(heading, justify="right")
    ratios = comparison.ratios()
    for index in range(max(len(runs) for runs in comparison.runs.values())):
        for name, runs in comparison.runs.items():
            ratio = f"{ratios[index]:.2f}" if ratios and name == OURS else ""
            table.add_row(str(index + 1), name, *_cells(runs[index]), ratio)
        table.add_section()
    for name in comparison.runs:
        ratio = f"{statistics.median(ratios):.2f}" if ratios and name == OURS else ""
        table.add_row("median", name, *_cells(median_run(comparison.runs[name])), ratio)
    console.print(table)
    verdict = comparison.verdict()
    if verdict is not None:
        word = "[green]bar reached[/green]" if verdict.is_reached else "[red]bar missed[/red]"
        console.print(f"{word}: {verdict.reason}")


def median_run(runs: Sequence[LoadReport]) -> LoadReport:
    """Median of each figure by itself; errors are added up."""
    return LoadReport(
        requests_per_s=statistics.median(run.requests_per_s for run in runs),
        p50_ms=round(statistics.median(run.p50_ms for run in runs), 3),
        p99_ms=round(statistics.median(run.p99_ms for run in runs), 3),
        errors=sum(run.errors for run in runs),
    )


def to_record(
    comparison: Comparison, setting: Mapping[str, Any], versions: Mapping[str, str]
) -> dict[str, Any]:
    """Everything that a claim citing this measurement needs, as a JSON object."""
    verdict = comparison.verdict()
    ratios = comparison.ratios()
    return {
        "measured": "requests/s of a 1-worker echo model, servers driven in turns",
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": dict(versions),
        "setting": dict(setting),
        "runs": {name: [asdict(run) for run in runs] for name, runs in comparison.runs.items()},
        "medians": {name: asdict(median_run(runs)) for name, runs in comparison.runs.items()},
        "ratios": ratios,
        "median_ratio": round(statistics.median(ratios), 3) if ratios else None,
        "bar_per_s": comparison.bar_per_s,
        "verdict": asdict(verdict) if verdict else None,
    }


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """The record lies at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def commit() -> str:
    """The checkout's commit, marked `-dirty` when tracked files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def machine() -> dict[str, str | int | float]:
    """What ran the measurement, and how busy it was when this was asked."""
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in cpu_lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
    }


def _cells(run: LoadReport) -> tuple[str, str, str, str]:
    return (
        f"{run.requests_per_s:,.0f}",
        f"{run.p50_ms:.1f}",
        f"{run.p99_ms:.1f}",
        str(run.errors),
    )
