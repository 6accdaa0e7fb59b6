"""What jobs cost the requests beside them, and what they cost themselves.

    python -m benchmarks.jobs

A model whose batches take 20 ms whatever is in them, at a fixed rate of requests, with and without
10,000 jobs behind it; then the ingress's processor time for each job; then a store in which ever
more jobs wait. Exit code 0: every bar is reached; 1: one is missed; 2: it could not be measured.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.job_costs.free_seats import (
    BATCH_SIZE,
    BODY_BYTES,
    HANDLER_MS,
    RATE_PER_S,
    Run,
    accept_us,
    median_of_pairs,
    pairs,
)
from benchmarks.job_costs.waiting_jobs import LIMIT, Waiting, measure
from benchmarks.measuring.records import told
from benchmarks.measuring.reports import Verdict, at_least, at_most, finish, positive, to_record

JOBS, SHORT_JOBS = 10_000, 1_500
ROUNDS, SECONDS, SHORT_SECONDS = 5, 10.0, 1.0
WAITING, SHORT_WAITING, MILLION, TRIES = (1_000, 10_000, 100_000), (1_000,), 1_000_000, 200

P99_GROWTH, LEAST_SHARE = 1.15, 0.9
ACCEPT_GROWTH = 1.3
CLAIM_MS, LOOK_MS = 1.0, 1.0
# With its body of 1 KiB.
BYTES_PER_JOB = 2_560


def verdicts(
    found: Sequence[tuple[Run, Run]], costs_us: Mapping[str, float], waiting: Sequence[Waiting]
) -> Iterator[Verdict]:
    """Returns each figure that has a bar."""
    medians = median_of_pairs(found)
    jobs = found[0][1].jobs
    text = f"{jobs} jobs behind {RATE_PER_S:.0f} requests/s: p99 of requests {{}} as long"
    yield at_most(medians["p99_growth"], P99_GROWTH, text, "{:.2f} x")
    text = "free seats that jobs had: {}"
    yield at_least(100 * medians["share"], 100 * LEAST_SHARE, text, "{:.1f} %")
    growth = costs_us["job"] / costs_us["request"]
    text = "accepting a job: {} of the ingress's processor time for a request"
    yield at_most(growth, ACCEPT_GROWTH, text, "{:.2f} x")
    for one in waiting:
        where = f"{one.jobs} jobs wait: "
        yield at_most(one.claim_ms, CLAIM_MS, f"{where}claim of {LIMIT} {{}}", "{:.2f} ms")
        look_ms = max(one.look_first_ms, one.look_last_ms)
        yield at_most(look_ms, LOOK_MS, f"{where}a look at one {{}}", "{:.2f} ms")
        yield at_most(one.bytes_per_job, BYTES_PER_JOB, f"{where}each {{}}", "{:.0f} bytes")


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin and the tables."""
    found = [(Run(**alone), Run(**beside)) for alone, beside in record["free_seats"]]
    costs_us = record["accept_us"]
    lines = [
        f"`python -m benchmarks.jobs` at {told(record)}; load average before: "
        f"{record['load_average']}. {RATE_PER_S:.0f} requests/s, batches of {BATCH_SIZE} that take "
        f"{HANDLER_MS} ms, {record['seconds']:.0f} s each; pairs of neighbours in time:",
        "",
        "| jobs | p50 | p99 | requests/s | jobs/s | of the free seats | handler at work |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_row(run) for pair in found for run in pair]
    lines += [
        "",
        f"Processor time of the ingress, {BODY_BYTES} bytes: "
        f"{statistics.median(costs_us['request']):.0f} µs for a request and its answer, "
        f"{statistics.median(costs_us['job']):.0f} µs for accepting a job.",
        "",
        f"| jobs that wait | claim of {LIMIT}, worst | a look at the next | at the last | each |",
        "|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one.jobs} | {one.claim_ms:.2f} ms, {one.worst_claim_ms:.2f} ms "
        f"| {one.look_first_ms:.2f} ms | {one.look_last_ms:.2f} ms | {one.bytes_per_job} bytes |"
        for one in (Waiting(**waiting) for waiting in record["waiting"])
    ]
    return "\n".join(lines)


def _row(run: Run) -> str:
    share = f"{100 * run.share:.0f} %" if run.jobs else ""
    return (
        f"| {run.jobs} | {run.p50_ms:.1f} ms | {run.p99_ms:.1f} ms | {run.requests_per_s:.0f} "
        f"| {run.jobs_per_s:.0f} | {share} | {100 * run.busy_share:.0f} % |"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs")
    parser.add_argument("--rounds", type=positive, default=None, help="pairs of runs")
    parser.add_argument("--seconds", type=positive, default=None, help="of each run")
    parser.add_argument("--jobs", type=positive, default=None, help="behind the requests")
    parser.add_argument("--million", action="store_true", help="let 1,000,000 jobs wait, too")
    parser.add_argument("--short", action="store_true", help="leave the document as it is")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.short else ROUNDS)
    options.seconds = float(options.seconds or (SHORT_SECONDS if options.short else SECONDS))
    options.jobs = options.jobs or (SHORT_JOBS if options.short else JOBS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything, prints and writes it; returns the exit code."""
    options = parse(arguments)
    load_average = round(os.getloadavg()[0], 2)
    counts = SHORT_WAITING if options.short else WAITING
    if options.million:
        counts = (*counts, MILLION)

    def record() -> dict[str, Any]:
        found = list(pairs(options.rounds, options.jobs, options.seconds))
        costs_us = accept_us(options.rounds, options.seconds / 2)
        waiting = [measure(count, 20 if options.short else TRIES) for count in counts]
        about = {
            "seconds": options.seconds,
            "load_average": load_average,
            "free_seats": [[asdict(run) for run in pair] for pair in found],
            "accept_us": costs_us,
            "waiting": [asdict(one) for one in waiting],
        }
        medians_us = {kind: statistics.median(times) for kind, times in costs_us.items()}
        return to_record("what jobs cost", about, list(verdicts(found, medians_us, waiting)))

    return finish("jobs", record, markdown, is_short=options.short)


if __name__ == "__main__":
    sys.exit(main())
