"""What a large batch costs while it runs, and whether each line is answered once.

    python -m benchmarks.bulk [--lines 1000000]

First the requests beside a batch: a model whose batches take 20 ms whatever is in them, at a fixed
rate of requests, with and without a batch behind it. Then a batch of a million lines for a handler
that takes 1 ms, on a `ferry up` of which the feeder, Redis, and then every process is killed with
SIGKILL on the way. Memory is resident bytes, looked at once a second. Exit code 0: every bar is
reached; 1: one is missed; 2: it could not be measured.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from benchmarks.job_costs.bulk_batch import BATCH_SIZE, MB, ROLES, run_batch, uploaded
from benchmarks.job_costs.free_seats import HANDLER_MS, RATE_PER_S, Run, median_of_pairs, pairs
from benchmarks.measuring.records import told
from benchmarks.measuring.reports import Verdict, at_least, at_most, finish, positive, to_record

LINES, SHORT_LINES = 1_000_000, 20_000
KILLS = {0.2: "feeder", 0.5: "Redis", 0.8: "everything"}
BEHIND, ROUNDS, SECONDS = 10_000, 5, 10.0
SHORT_BEHIND, SHORT_SECONDS = 2_000, 1.0
ROWS = 12
P99_GROWTH, LEAST_SHARE = 1.15, 0.9
# A process is flat when it grows by less than this from the first tenth of the lines to the last.
GROWTH_MB = 10.0


def growth_mb(record: Mapping[str, Any], role: str) -> float:
    """Returns by how much the memory of a role grew from the first tenth of the lines to the last.

    The least of each, as a part that has just been started is small.
    """
    lines = record["lines"]
    first = [one[role] for one in record["curve"] if role in one and one["done"] <= 0.2 * lines]
    last = [one[role] for one in record["curve"] if role in one and one["done"] >= 0.9 * lines]
    return max(last) - max(first) if first and last else float("inf")


def verdicts(record: Mapping[str, Any], found: Sequence[tuple[Run, Run]]) -> Iterator[Verdict]:
    """Returns each figure that has a bar."""
    medians = median_of_pairs(found)
    text = f"a batch behind {RATE_PER_S:.0f} requests/s: p99 of requests {{}} as long"
    yield at_most(medians["p99_growth"], P99_GROWTH, text, "{:.2f} x")
    text = "free seats that lines had: {}"
    yield at_least(100 * medians["share"], 100 * LEAST_SHARE, text, "{:.1f} %")
    where = f"{record['lines']} lines, {', '.join(record['killed'])} killed: "
    yield at_most(record["lost"], 0, f"{where}{{}} lost", "{:.0f}")
    yield at_most(record["doubled"], 0, f"{where}{{}} doubled", "{:.0f}")
    for role in ROLES:
        text = f"{where}{role} grew by {{}}"
        yield at_most(growth_mb(record, role), GROWTH_MB, text, "{:.1f} MB")


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin and the tables."""
    found = [(Run(**alone), Run(**beside)) for alone, beside in record["free_seats"]]
    curve = record["curve"]
    shown = curve[:: max(1, len(curve) // ROWS)]
    rows = [("before", record["before"]), ("uploaded", record["after_upload"])]
    rows += [(f"{one['done']:.0f} lines, {one['seconds']:.0f} s", one) for one in shown]
    rows.append(("output read", record["after_download"]))
    lines = [
        f"`python -m benchmarks.bulk` at {told(record)}; load average before: "
        f"{record['load_average']}. {RATE_PER_S:.0f} requests/s, batches that take {HANDLER_MS} "
        "ms:",
        "",
        "| lines behind | p50 | p99 | requests/s | lines/s | of the free seats |",
        "|---:|---:|---:|---:|---:|---:|",
        *(_row(run) for pair in found for run in pair),
        "",
        f"{record['lines']} lines ({record['file_bytes'] / MB:.0f} MB) for a handler that takes 1 "
        f"ms for a batch of up to {BATCH_SIZE}; {', '.join(record['killed'])} killed on the way; "
        f"{record['seconds']:.0f} s. Resident MB:",
        "",
        f"| | {' | '.join(ROLES)} |",
        "|---|---:|---:|---:|",
    ]
    for name, sizes in rows:
        cells = (f"{sizes[role]:.0f}" if role in sizes else "" for role in ROLES)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(run: Run) -> str:
    share = f"{100 * run.share:.0f} %" if run.jobs else ""
    return (
        f"| {run.jobs} | {run.p50_ms:.1f} ms | {run.p99_ms:.1f} ms | {run.requests_per_s:.0f} "
        f"| {run.jobs_per_s:.0f} | {share} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes the record; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk")
    parser.add_argument("--lines", type=positive, default=None, help="of the batch that is killed")
    parser.add_argument("--rounds", type=positive, default=None, help="pairs of runs")
    parser.add_argument("--short", action="store_true", help="leave the document as it is")
    options = parser.parse_args(arguments)
    lines = options.lines or (SHORT_LINES if options.short else LINES)
    rounds = options.rounds or (1 if options.short else ROUNDS)
    seconds, behind = (SHORT_SECONDS, SHORT_BEHIND) if options.short else (SECONDS, BEHIND)
    load_average = round(os.getloadavg()[0], 2)
    console = Console(stderr=True, highlight=False)

    def record() -> dict[str, Any]:
        found = list(pairs(rounds, behind, seconds, uploaded))
        with console.status("") as status:
            batch = run_batch(
                lines, KILLS, lambda at: status.update(f"{at['done']:.0f} of {lines} lines")
            )
        about = {
            "load_average": load_average,
            "free_seats": [[asdict(run) for run in pair] for pair in found],
            **batch,
        }
        return to_record("a batch of many lines", about, list(verdicts(batch, found)))

    return finish("bulk", record, markdown, is_short=options.short)


if __name__ == "__main__":
    sys.exit(main())
