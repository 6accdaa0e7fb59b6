"""Records as tables, on the console and in Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.comparison.workloads import MOSEC, TORCHSERVE
from benchmarks.measuring.records import OURS, told

HEADS = ("", "requests/s", "ours to it", "in turns", "p50 ms", "p99 ms", "processor us", "errors")
KINDS = ("ingress", "Redis", "workers")
_WORDS = {True: "reached", False: "missed", None: "not measured"}
_COLORS = {True: "green", False: "red", None: "yellow"}
_MANY = 100.0


def print_record(console: Console, record: Mapping[str, Any]) -> None:
    """Prints the table, the servers that were left out, and the verdicts."""
    table = Table(title=record["title"], title_justify="left")
    for head in HEADS:
        table.add_column(head, justify="right" if head else "left")
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
    for name, found in record["servers"].items():
        median, turns = found["median"], found.get("ratios_of_turns")
        yield [
            f"{name} {found['version']}".strip(),
            _rate(median["requests_per_s"]),
            f"{found['ratio']:.2f}" if turns else "",
            f"{min(turns):.2f} to {max(turns):.2f}" if turns else "",
            f"{median['p50_ms']:.2f}",
            f"{median['p99_ms']:.1f}",
            f"{median['cpu_us']:,.0f}" if median["cpu_us"] else "",
            f"{median['errors']}",
        ]


def markdown(record: Mapping[str, Any], name: str) -> str:
    """Returns the record of the workload of this name as a section of a document has it."""
    lines = [
        f"`python -m benchmarks.compare --workload {name}` at {told(record)}; {record['pairs']} "
        f"turns of {record['seconds']:g} s each. Other processes took "
        f"{record['others_percent']:g} % of the machine.",
        "",
        *_table(HEADS, rows(record)),
        "",
        *(f"- {_WORDS[one['is_reached']]}: {one['text']}" for one in record["verdicts"]),
        *(f"- left out: {name}: {_short(why)}" for name, why in record["left_out"].items()),
        *_slower(record),
    ]
    return "\n".join(lines)


def costs(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns where the processor time of a request goes, in each record and before it."""
    heads = ("own code + kernel, us", *KINDS, "together", TORCHSERVE, "ours to it", MOSEC, "wrk")
    found = [row for record in records for row in _costs(record)]
    return "\n".join(_table(heads, found))


def _costs(record: Mapping[str, Any]) -> Iterator[list[str]]:
    servers = record["servers"]
    for name, found in servers.items():
        median = found["median"]
        if not set(KINDS) <= set(median["kinds_us"]):
            continue
        where = record["title"] if name == OURS else f"... at {found['version']}"
        row = [where, *("{:.1f} + {:.1f}".format(*median["kinds_us"][kind]) for kind in KINDS)]
        row.append(f"{median['cpu_us']:.1f}")
        theirs = servers.get(TORCHSERVE)
        row.append(f"{theirs['median']['cpu_us']:.1f}" if theirs else "")
        row.append(f"{median['cpu_us'] / theirs['median']['cpu_us']:.2f}" if theirs else "")
        row.append(f"{servers[MOSEC]['median']['cpu_us']:.1f}" if MOSEC in servers else "")
        yield [*row, f"{median['load_us']:.1f}"]


def _table(heads: Sequence[str], found: Iterator[list[str]] | list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|---{'|---:' * (len(heads) - 1)}|"]
    return lines + [f"| {' | '.join(row)} |" for row in found]


def _slower(record: Mapping[str, Any]) -> Iterator[str]:
    for name, found in record["servers"].items():
        if found.get("ratio", 1.0) < 1:
            yield f"- **slower than {name}**, which does {1 / found['ratio']:.2f} x as much"


def _short(why: str) -> str:
    """Shortens a failure to its kind and the first line of pip or the server."""
    return " ".join(why.splitlines()[:2])


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= _MANY else f"{value:.2f}"
