"""How much of one device its workers use, by how many there are and what a batch needs beside it.

    python -m benchmarks.sharing

The device is a lock that a batch holds while it naps, so that nothing else is measured: processors
stay free. Exit code 0: two workers use the bar's share of it; 1: they do not.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring.load import BenchmarkError, Load, drive_with_wrk, wrk_path
from benchmarks.measuring.records import told
from benchmarks.measuring.reports import Verdict, at_least, finish, to_record
from benchmarks.servers.fleet import Fleet

HANDLER = Path(__file__).with_name("sharing_handler.py")
BATCH_SIZE, DEVICE_MS = 8, 40
PREPARE_MS = (10, 20, 30)
WORKERS = (1, 2, 3)
JUDGED_WORKERS, LEAST_SHARE = 2, 0.95
OPEN_BATCHES = 3  # per worker
SECONDS, SHORT_SECONDS, SETTLE_S = 6.0, 2.0, 1.0

# By ms to prepare, then by workers.
Shares = Mapping[str, Mapping[str, float]]


def shares(prepare_ms: Sequence[int], seconds: float) -> dict[str, dict[str, float]]:
    """Measures the share of batches done, of those that the device could do.

    Raises:
        BenchmarkError: requests were not answered.
    """
    most_per_s = BATCH_SIZE * 1000 / DEVICE_MS
    found: dict[str, dict[str, float]] = {str(ms): {} for ms in prepare_ms}
    with Fleet(handler=HANDLER) as fleet:
        fleet.register("sharing", batch_size=BATCH_SIZE, max_batch_delay=5, initial_workers=0)
        for workers in WORKERS:
            fleet.scale("sharing", workers)
            time.sleep(SETTLE_S)
            for ms in prepare_ms:
                body = f"{ms} {DEVICE_MS}".encode()
                connections = OPEN_BATCHES * BATCH_SIZE * workers
                load = Load(
                    fleet.url("sharing"),
                    body,
                    "application/octet-stream",
                    connections,
                    least_answer_bytes=len(body),
                )
                report = drive_with_wrk(load, seconds)
                if report.errors:
                    raise BenchmarkError(f"{report.errors} requests were not answered")
                found[str(ms)][str(workers)] = round(report.requests_per_s / most_per_s, 3)
    return found


def verdicts(found: Shares) -> Iterator[Verdict]:
    """Judges whether two workers leave the device no time to wait."""
    for ms, by_workers in found.items():
        text = f"{ms} ms to prepare, {JUDGED_WORKERS} workers: {{}} of the device"
        share = by_workers[str(JUDGED_WORKERS)]
        yield at_least(100 * share, 100 * LEAST_SHARE, text, "{:.1f} %")


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin and a table."""
    lines = [
        f"`python -m benchmarks.sharing` at {told(record)}; load average before: "
        f"{record['load_average']}. Of what the device could do, with batches that take it for "
        f"{DEVICE_MS} ms:",
        "",
        "| to prepare a batch | "
        + " | ".join(f"{n} worker{'s' * (n > 1)}" for n in WORKERS)
        + " |",
        "|---|" + "---:|" * len(WORKERS),
    ]
    for ms, by_workers in record["shares"].items():
        cells = " | ".join(f"{100 * by_workers[str(n)]:.0f} %" for n in WORKERS)
        lines.append(f"| {ms} ms | {cells} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything, prints and writes it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing")
    parser.add_argument("--short", action="store_true", help="leaves the document as it is")
    is_short = parser.parse_args(arguments).short
    load_average = round(os.getloadavg()[0], 2)

    def record() -> dict[str, Any]:
        wrk_path()
        seconds = SHORT_SECONDS if is_short else SECONDS
        found = shares(PREPARE_MS[1:2] if is_short else PREPARE_MS, seconds)
        about = {"seconds": seconds, "load_average": load_average, "shares": found}
        return to_record("how workers share a device", about, list(verdicts(found)))

    return finish("sharing", record, markdown, is_short=is_short)


if __name__ == "__main__":
    sys.exit(main())
