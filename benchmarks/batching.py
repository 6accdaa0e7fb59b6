"""What batching does for README's model: `ferry bench batching` on a server of its own.

    python -m benchmarks.batching

Exit code 0: the largest batches answer as many requests/s as the bar says; 1: fewer.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.first_model.contenders import PROGRAMS
from benchmarks.measuring.load import BenchmarkError
from benchmarks.measuring.records import told
from benchmarks.measuring.reports import at_least, at_most, finish, to_record
from benchmarks.servers.archive_servers import Torchferry
from benchmarks.servers.server import Job, ferry_addresses, ferry_command

MODEL, ROW = "model", "[1, 2, 3, 4]"
SIZES, DELAY_MS, CONNECTIONS, SECONDS = "1,4,16,32", 10, 64, 10
LEAST_RATIO = 3.0


class EmptyFerry(Torchferry):
    """Registers nothing: the command does, with each batch size."""

    def measure(self, archive: str, *words: str) -> dict[str, Any]:
        """Runs `ferry bench batching` against this server; returns its report."""
        names = [name.removesuffix("ADDRESS") + "URL" for name in ferry_addresses(self._ports)]
        urls = dict(zip(names, map(self._address, range(3)), strict=True))
        urls["FERRY_METRICS_URL"] += "/metrics"
        command = [ferry_command(), "bench", "batching", archive, *words, "--json"]
        run = subprocess.run(command, env=urls, capture_output=True, text=True, check=False)
        if run.returncode:
            raise BenchmarkError(run.stderr)
        report: dict[str, Any] = json.loads(run.stdout)
        return report

    def _register(self) -> None:
        """Leaves the server without models."""


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="batching-") as name:
        folder = Path(name)
        program = str(PROGRAMS / f"{MODEL}.py")
        pack = [ferry_command(), "archive", program, "--export-path", str(folder)]
        subprocess.run(pack, check=True, capture_output=True)
        body = folder / "row.json"
        body.write_text(ROW, encoding="utf-8")
        job = Job(MODEL, folder / f"{MODEL}.mar", 1, DELAY_MS)
        words = ["--body", str(body), "--content-type", "application/json", "--batch-sizes", SIZES]
        words += ["--delays", str(DELAY_MS), "--connections", str(CONNECTIONS)]
        words += ["--duration", str(SECONDS), "--out", str(folder / "bench")]
        with EmptyFerry(job) as server:
            points = server.measure(job.archive.name, *words)["points"]
    single = points[0]["requests_per_s"]
    ratio = points[-1]["requests_per_s"] / single
    errors = sum(point["errors"] for point in points)
    verdicts = [
        at_least(ratio, LEAST_RATIO, f"batches of up to 32: {{}} of {single:,.0f}", "{:.1f} x"),
        at_most(errors, 0, "errors: {}", "{:d}"),
    ]
    about = {"connections": CONNECTIONS, "seconds": SECONDS, "points": points}
    return to_record("batching", about, verdicts)


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
