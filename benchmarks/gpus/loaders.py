"""Several processes of load beside each other, and what they saw together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measuring.load import Load, LoadReport, drive_to_the_end


@dataclass(frozen=True, slots=True)
class Driven:
    """What a process of load saw, and how many cores it kept busy."""

    report: LoadReport
    cores: float


def driven(load: Load, seconds: float) -> Driven:
    """Sends requests for that many seconds; runs in a process of its own."""
    started_s, used_s = time.perf_counter(), time.process_time()
    report = drive_to_the_end(load, seconds)
    elapsed_s = time.perf_counter() - started_s
    return Driven(report, (time.process_time() - used_s) / elapsed_s)


def together(parts: Sequence[Driven]) -> Driven:
    """Adds up what they saw and used; of percentiles takes the worst."""
    reports = [part.report for part in parts]
    return Driven(
        LoadReport(
            requests_per_s=round(sum(report.requests_per_s for report in reports), 3),
            p50_ms=max(report.p50_ms for report in reports),
            p99_ms=max(report.p99_ms for report in reports),
            errors=sum(report.errors for report in reports),
        ),
        sum(part.cores for part in parts),
    )
