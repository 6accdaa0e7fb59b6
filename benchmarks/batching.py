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

from benchmarks.measuring.load import Load, drive_with_wrk
from benchmarks.measuring.records import Verdict, at_least, at_most, finish, parse, table_of
from benchmarks.servers.child import ferry_command
from benchmarks.servers.running import ServedModel, Torchferry

PROGRAMS = Path(__file__).with_name("programs")
MODEL, ROW, CONNECTIONS = "model", "[1, 2, 3, 4]", 64
SIZES, DELAY_MS = (1, 4, 16, 32), 10
LEAST_RATIO = 3.0


def measure(seconds: int) -> tuple[dict[str, Any], list[Verdict]]:
    with tempfile.TemporaryDirectory(prefix="batching-") as name:
        pack = [ferry_command(), "archive", str(PROGRAMS / f"{MODEL}.py"), "--export-path", name]
        subprocess.run(pack, check=True, capture_output=True)
        points = [measure_size(Path(name) / f"{MODEL}.mar", size, seconds) for size in SIZES]
    single = points[0]["requests_per_s"]
    ratio = points[-1]["requests_per_s"] / single
    errors = sum(point["errors"] for point in points)
    verdicts = [
        at_least(ratio, LEAST_RATIO, f"batches of up to 32: {{}} of {single:,.0f}", "{:.1f} x"),
        at_most(errors, 0, "errors: {}", "{:d}"),
    ]
    about = {"connections": CONNECTIONS, "seconds": seconds, "points": points}
    return {"measured": "batching", **about}, verdicts


def measure_size(archive: Path, batch_size: int, seconds: int) -> dict[str, Any]:
    with Torchferry(ServedModel(MODEL, archive, batch_size, DELAY_MS, queue_size=256)) as server:
        load = Load(server.url_of(MODEL), ROW.encode(), CONNECTIONS, "application/json")
        drive_with_wrk(load, 2)
        batches, requests = server.batches(MODEL)
        report = drive_with_wrk(load, seconds)
        more_batches, more_requests = server.batches(MODEL)
    mean_batch = (more_requests - requests) / (more_batches - batches)
    return {"batch_size": batch_size, "mean_batch": mean_batch, **asdict(report)}


def markdown(record: Mapping[str, Any]) -> str:
    heads = ("batch size at most", "in the mean", "requests/s", "x single", "p50 ms", "p99 ms")
    single = record["points"][0]["requests_per_s"]
    rows = [
        (
            *(point["batch_size"], f"{point['mean_batch']:.1f}"),
            f"{point['requests_per_s']:,.0f}",
            f"{point['requests_per_s'] / single:.1f}",
            *(f"{point['p50_ms']:.1f}", f"{point['p99_ms']:.1f}"),
        )
        for point in record["points"]
    ]
    about = f"{record['connections']} clients, {record['seconds']} s each.\n\n"
    return about + table_of(heads, rows)


if __name__ == "__main__":
    options = parse("batching", seconds=(10, 1))
    sys.exit(finish("batching", lambda: measure(options.seconds), markdown, is_short=options.short))
