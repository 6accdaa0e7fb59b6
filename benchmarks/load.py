"""Drives one URL with wrk and says what came back."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPORT_SCRIPT = Path(__file__).with_name("wrk_report.lua")
REPORT_MARK = "REPORT "
ERROR_FIELDS = ("connect_errors", "read_errors", "write_errors", "status_errors", "timeouts")


class BenchmarkError(Exception):
    """The measurement cannot be made; the message says what is missing and what would do."""


@dataclass(frozen=True, slots=True)
class Load:
    """How a server is driven: a closed loop, each connection sends when it has its answer."""

    connections: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one run of wrk saw. `errors` counts refused, broken, late and 4xx/5xx answers."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int

    @classmethod
    def from_wrk(cls, output: str, body_bytes: int) -> "LoadReport":
        """The report in wrk's output; answers too short to carry the body are all errors.

        Raises:
            BenchmarkError: no report in the output, or not a single answer.
        """
        lines = [line for line in output.splitlines() if line.startswith(REPORT_MARK)]
        if not lines:
            raise BenchmarkError(f"wrk gave no report:\n{output}")
        record: dict[str, Any] = json.loads(lines[-1].removeprefix(REPORT_MARK))
        requests: int = record["requests"]
        if requests == 0:
            raise BenchmarkError(f"not one request was answered:\n{output}")
        errors = sum(record[name] for name in ERROR_FIELDS)
        # An echo that answers without the body would be fast and wrong.
        if record["bytes_read"] < (requests - errors) * body_bytes:
            errors = requests
        return cls(
            requests_per_s=round(requests / record["duration_us"] * 1e6, 1),
            p50_ms=record["p50_us"] / 1000,
            p99_ms=record["p99_us"] / 1000,
            errors=errors,
        )


def wrk_path() -> str:
    """Where wrk is.

    Raises:
        BenchmarkError: wrk is not on PATH.
    """
    path = shutil.which("wrk")
    if path is None:
        raise BenchmarkError("wrk is not installed: apt-get install wrk (Debian, Ubuntu)")
    return path


def drive(url: str, load: Load, seconds: int) -> LoadReport:
    """What wrk saw in that many seconds. Blocks for as long.

    Raises:
        BenchmarkError: wrk is missing, failed, or got no answer at all.
    """
    command = [wrk_path(), "-t1", f"-c{load.connections}", f"-d{seconds}s", "--timeout", "10s"]
    command += ["-s", str(REPORT_SCRIPT), url, "--", str(load.body_bytes)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise BenchmarkError(f"wrk failed ({run.returncode}): {run.stderr or run.stdout}")
    return LoadReport.from_wrk(run.stdout, load.body_bytes)
