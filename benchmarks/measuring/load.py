"""Drives one URL and says what came back."""

import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import driver
from benchmarks.measuring.figures import figures

WRK_SCRIPT = Path(__file__).with_name("requests.lua")
REPORT_MARK = "REPORT "
ERROR_FIELDS = ("connect_errors", "read_errors", "write_errors", "status_errors", "timeouts")


class BenchmarkError(Exception):
    """The measurement cannot be made; the message says what is missing and what would do."""


@dataclass(frozen=True, slots=True)
class Load:
    """How a server is driven: a closed loop, each connection sends when it has its answer."""

    url: str
    body: bytes
    content_type: str
    connections: int
    # An answer that is shorter is wrong, however fast.
    least_answer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one run saw. `errors` counts refused, broken, late and 4xx/5xx answers."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int

    @classmethod
    def from_wrk(cls, output: str, least_answer_bytes: int) -> "LoadReport":
        """Reads the report in wrk's output; counts all as errors if answers are too short.

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
        if record["bytes_read"] < (requests - errors) * least_answer_bytes:
            errors = requests
        return cls(
            requests_per_s=round(requests / record["duration_us"] * 1e6, 1),
            p50_ms=record["p50_us"] / 1000,
            p99_ms=record["p99_us"] / 1000,
            errors=errors,
        )


def wrk_path() -> str:
    """Returns the path of wrk.

    Raises:
        BenchmarkError: wrk is not on PATH.
    """
    path = shutil.which("wrk")
    if path is None:
        raise BenchmarkError("wrk is not installed: apt-get install wrk (Debian, Ubuntu)")
    return path


def drive_with_wrk(load: Load, seconds: float) -> LoadReport:
    """Drives with wrk for that many seconds, rounded up; for thousands of requests per second.

    Raises:
        BenchmarkError: wrk is missing, failed, or got no answer at all.
    """
    command = [wrk_path(), "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s"]
    with tempfile.NamedTemporaryFile(prefix="body-") as body:
        body.write(load.body)
        body.flush()
        command += ["--timeout", "10s", "-s", str(WRK_SCRIPT), load.url, "--"]
        command += [body.name, load.content_type]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise BenchmarkError(f"wrk failed ({run.returncode}): {run.stderr or run.stdout}")
    return LoadReport.from_wrk(run.stdout, load.least_answer_bytes)


def drive_to_the_end(load: Load, seconds: float) -> LoadReport:
    """Sends requests for that many seconds and waits for all of their answers.

    For a few requests per second, each worth much: a rate over exactly `seconds` would be out by a
    batch.

    Raises:
        BenchmarkError: not one request was answered.
    """
    driven = driver.Load(
        url=load.url,
        body=load.body,
        headers={"content-type": load.content_type},
        connections=load.connections,
        duration_s=seconds,
        warmup_s=0.0,
    )
    started_s = time.perf_counter()
    outcome = driver.drive(driven)
    elapsed_s = time.perf_counter() - started_s
    found = figures(outcome)
    if not outcome.latencies_s:
        raise BenchmarkError(f"not one request was answered: {dict(outcome.statuses)}")
    return LoadReport(
        requests_per_s=round(len(outcome.latencies_s) / elapsed_s, 3),
        p50_ms=round(found.p50_ms, 1),
        p99_ms=round(found.p99_ms, 1),
        errors=found.errors,
    )
