"""What batching does for README's model.

python -m benchmarks.batching
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measuring.load import Load, drive_with_wrk
from benchmarks.measuring.records import at_least, at_most, main, table_of
from benchmarks.servers.child import ferry_command
from benchmarks.servers.running import ServedModel, Torchferry

PROGRAM = Path(__file__).with_name("programs") / "model.py"
LEAST_RATIO = 3.0


def measure(is_short: bool) -> dict[str, Any]:
    seconds = 1 if is_short else 10
    points = []
    with tempfile.TemporaryDirectory(prefix="batching-") as folder:
        pack = [ferry_command(), "archive", str(PROGRAM), "--export-path", folder]
        subprocess.run(pack, check=True, capture_output=True)
        for batch_size in (1, 4, 16, 32):
            archive = Path(folder) / "model.mar"
            model = ServedModel("model", archive, batch_size, 10, queue_size=256)
            with Torchferry(model) as server:
                load = Load(server.url_of("model"), b"[1, 2, 3, 4]", 64, "application/json")
                drive_with_wrk(load, 2)
                batches, requests = server.batches("model")
                report = drive_with_wrk(load, seconds)
                more_batches, more_requests = server.batches("model")
            mean_batch = (more_requests - requests) / (more_batches - batches)
            points.append({"batch_size": batch_size, "mean_batch": mean_batch, **asdict(report)})
    single = points[0]["requests_per_s"]
    ratio = points[-1]["requests_per_s"] / single
    errors = sum(point["errors"] for point in points)
    verdicts = [
        at_least(ratio, LEAST_RATIO, f"batches of up to 32: {{}} of {single:,.0f}", "{:.1f} x"),
        at_most(errors, 0, "errors: {}", "{:d}"),
    ]
    about = {"connections": 64, "seconds": seconds, "points": points}
    return {"measured": "batching", **about, "verdicts": verdicts}


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
    sys.exit(main("batching", measure, markdown))
