"""A record as a table on the console, as Markdown, and as a chart."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.comparison import OURS
from benchmarks.records import told

HEADS = ("beside", "req/s", "ours", "ratio", "pairs", "p99 ms", "ours", "errors")
_WORDS = {True: "reached", False: "missed", None: "not measured"}
_COLORS = {True: "green", False: "red", None: "yellow"}
_INCHES_WIDE = 8
_MANY = 100.0


def print_record(console: Console, record: Mapping[str, Any]) -> None:
    """Prints the table, the servers that were left out, and the verdicts."""
    table = Table(title=record["title"], title_justify="left")
    for head in HEADS:
        table.add_column(head, justify="left" if head == HEADS[0] else "right")
    for row in rows(record):
        table.add_row(*row)
    console.print(table)
    for name, why in record["left_out"].items():
        console.print(f"left out: {name}: {why}", markup=False, highlight=False)
    for verdict in record["verdicts"]:
        word, color = _WORDS[verdict["is_reached"]], _COLORS[verdict["is_reached"]]
        console.print(f"[{color}]{word}[/{color}]: {verdict['text']}", highlight=False)


def rows(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """Returns one row of texts per server, under HEADS."""
    for name, found in record["beside"].items():
        ours, theirs = found["medians"][OURS], found["medians"][name]
        pairs = found["ratios_of_pairs"]
        yield [
            f"{name} {found['version']}".strip(),
            _rate(theirs["requests_per_s"]),
            _rate(ours["requests_per_s"]),
            f"{found['ratio']:.2f}",
            f"{min(pairs):.2f} to {max(pairs):.2f}",
            f"{theirs['p99_ms']:.1f}",
            f"{ours['p99_ms']:.1f}",
            f"{theirs['errors']} / {ours['errors']}",
        ]


def markdown(record: Mapping[str, Any], name: str, chart: str) -> str:
    """Returns the record as a section of a document has it.

    Args:
        record: what was measured.
        name: of the workload.
        chart: where the chart lies, seen from the document.
    """
    lines = [
        f"`python -m benchmarks.compare --workload {name}` at {told(record)}; {record['pairs']} "
        f"pairs of {record['seconds']:g} s each, load average before: {record['load_average']}.",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|---{'|---:' * (len(HEADS) - 1)}|",
        *(f"| {' | '.join(row)} |" for row in rows(record)),
        "",
        *(f"- {_WORDS[one['is_reached']]}: {one['text']}" for one in record["verdicts"]),
        *(f"- left out: {name}: {_short(why)}" for name, why in record["left_out"].items()),
        *_slower(record),
        "",
        f"![Requests per second]({chart})",
    ]
    return "\n".join(lines)


def write_chart(record: Mapping[str, Any], path: Path) -> None:
    """Writes the chart: requests/s of both, from the slowest to the fastest run.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    beside = record["beside"]
    chart = Figure(figsize=(_INCHES_WIDE, 1.2 + 0.6 * len(beside)), layout="constrained")
    axes = chart.subplots()
    for color, shift, is_ours in (("C0", -0.2, True), ("C7", 0.2, False)):
        for row, (name, found) in enumerate(beside.items()):
            server = OURS if is_ours else name
            rates = [run["requests_per_s"] for run in found["runs"][server]]
            middle = found["medians"][server]["requests_per_s"]
            reach = [[middle - min(rates)], [max(rates) - middle]]
            label = (OURS if is_ours else "the other") if row == 0 else None
            axes.barh(row + shift, middle, 0.36, color=color, label=label, xerr=reach)
    axes.set_yticks(range(len(beside)), list(beside))
    axes.invert_yaxis()
    axes.set_xlabel("requests/s: median, slowest and fastest run")
    axes.set_title(record["title"], loc="left")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and version of the tool: the same record gives the same file.
    chart.savefig(path, dpi=110, metadata={"Software": None})


def _slower(record: Mapping[str, Any]) -> Iterator[str]:
    for name, found in record["beside"].items():
        if found["ratio"] < 1:
            yield f"- **slower than {name}**, which does {1 / found['ratio']:.2f} x as much"


def _short(why: str) -> str:
    """Shortens a failure to its kind and the first line of pip or the server."""
    return " ".join(why.splitlines()[:2])


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= _MANY else f"{value:.2f}"
