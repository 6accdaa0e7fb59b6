"""What batching does for README's model.

    python -m benchmarks.batching

Exit code 0: the largest batches answer as many requests/s as the bar says; 1: fewer.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.first_model.contenders import PROGRAMS
from benchmarks.measuring.figures import batch_count
from benchmarks.measuring.load import BenchmarkError, Load, drive_with_wrk
from benchmarks.measuring.records import told
from benchmarks.measuring.reports import at_least, at_most, finish, to_record
from benchmarks.servers.archive_servers import Torchferry
from benchmarks.servers.server import Job, ferry_command

MODEL, ROW = "model", b"[1, 2, 3, 4]"
SIZES, DELAY_MS, CONNECTIONS = (1, 4, 16, 32), 10, 64
WARM_UP_S, SECONDS = 2, 10
LEAST_RATIO = 3.0


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="batching-") as name:
        program = str(PROGRAMS / f"{MODEL}.py")
        pack = [ferry_command(), "archive", program, "--export-path", name]
        subprocess.run(pack, check=True, capture_output=True)
        points = [measure_size(Path(name) / f"{MODEL}.mar", size) for size in SIZES]
    single = points[0]["requests_per_s"]
    ratio = points[-1]["requests_per_s"] / single
    errors = sum(point["errors"] for point in points)
    verdicts = [
        at_least(ratio, LEAST_RATIO, f"batches of up to 32: {{}} of {single:,.0f}", "{:.1f} x"),
        at_most(errors, 0, "errors: {}", "{:d}"),
    ]
    about = {"connections": CONNECTIONS, "seconds": SECONDS, "points": points}
    return to_record("batching", about, verdicts)


def measure_size(archive: Path, batch_size: int) -> dict[str, Any]:
    with Torchferry(Job(MODEL, archive, batch_size, DELAY_MS)) as server:
        load = Load(server.url_of(MODEL), ROW, "application/json", CONNECTIONS)
        drive_with_wrk(load, WARM_UP_S)
        before = batch_count(server.metrics_url, MODEL)
        report = drive_with_wrk(load, SECONDS)
        after = batch_count(server.metrics_url, MODEL)
    if before is None or after is None:
        raise BenchmarkError(f"{server.metrics_url} does not tell how large batches were")
    return {"batch_size": batch_size, "mean_batch": after.since(before), **asdict(report)}


def markdown(record: Mapping[str, Any]) -> str:
    lines = [
        f"`python -m benchmarks.batching` at {told(record)}; {record['connections']} clients, "
        f"{record['seconds']} s each.\n",
        "| batch size at most | in the mean | requests/s | x single | p50 ms | p99 ms |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    single = record["points"][0]["requests_per_s"]
    for point in record["points"]:
        rate = point["requests_per_s"]
        lines.append(
            f"| {point['batch_size']} | {point['mean_batch']:.1f} | {rate:,.0f} | "
            f"{rate / single:.1f} | {point['p50_ms']:.1f} | {point['p99_ms']:.1f} |"
        )
    return "\n".join(lines)


def main() -> int:
    return finish("batching", measure, markdown, is_short="--short" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
