"""Drives one URL and says what came back: by wrk, or from this process."""

import asyncio
import json
import math
import random
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.measuring.records import BenchmarkError

WRK_SCRIPT = Path(__file__).with_name("requests.lua")
# More than any server answers late; what is still open then counts as an error.
ANSWER_TIMEOUT_S = 60.0
BINARY = "application/octet-stream"
_SEED = 20240117


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, by how many connections at once."""

    url: str
    body: bytes
    connections: int
    content_type: str = BINARY
    # An answer that is shorter is wrong, however fast.
    least_answer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one run saw. `errors` counts refused, broken, late and 4xx/5xx answers."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int


def wrk_path() -> str:
    path = shutil.which("wrk")
    if path is None:
        raise BenchmarkError("wrk is not installed: apt-get install wrk (Debian, Ubuntu)")
    return path


def drive_with_wrk(load: Load, seconds: float) -> LoadReport:
    """Drives in a closed loop, in whole seconds; for thousands of requests per second.

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
    _, mark, line = run.stdout.rpartition("REPORT ")
    if run.returncode != 0 or not mark:
        raise BenchmarkError(f"wrk failed ({run.returncode}): {run.stderr or run.stdout}")
    report: dict[str, Any] = json.loads(line)
    requests: int = report["requests"]
    if requests == 0:
        raise BenchmarkError(f"not one request was answered:\n{run.stdout}")
    errors: int = report["errors"]
    if report["bytes_read"] < (requests - errors) * load.least_answer_bytes:
        errors = requests
    rate_per_s = round(requests / report["duration_us"] * 1e6, 1)
    return LoadReport(rate_per_s, report["p50_us"] / 1000, report["p99_us"] / 1000, errors)


@dataclass(slots=True)
class Answers:
    """The latencies of successes, and the first words of everything else."""

    latencies_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def report(self) -> LoadReport:
        """Returns the figures.

        Raises:
            BenchmarkError: not one request was answered.
        """
        if not self.latencies_s:
            raise BenchmarkError(f"not one request was answered: {self.failures[:1]}")
        ordered = sorted(self.latencies_s)
        # The smallest value that at least this share of them does not exceed.
        p50_ms, p99_ms = (
            round(1000 * ordered[math.ceil(share * len(ordered)) - 1], 2) for share in (0.5, 0.99)
        )
        rate_per_s = round(len(ordered) / self.seconds, 3)
        return LoadReport(rate_per_s, p50_ms, p99_ms, len(self.failures))


def drive(
    load: Load, seconds: float, rate_per_s: float = 0.0, *, is_strict: bool = False
) -> Answers:
    """Sends requests for that many seconds and waits for all of their answers.

    With a rate, requests leave on time, whether or not earlier ones have been answered (open loop).
    Without it, each connection sends when it has its answer (closed loop); for a few requests per
    second, each worth much: a rate over exactly `seconds` would be out by a batch.

    Raises:
        BenchmarkError: it is strict, and not every request was answered with a success.
    """
    answers = asyncio.run(_drive(load, seconds, rate_per_s))
    if is_strict and (answers.failures or not answers.latencies_s):
        raise BenchmarkError(f"not all were answered: {answers.failures[:1]}")
    return answers


async def _drive(load: Load, seconds: float, rate_per_s: float) -> Answers:
    answers = Answers()

    async def ask_until(session: aiohttp.ClientSession, end_s: float) -> None:
        while (now_s := time.perf_counter()) < end_s:
            await _ask(session, load, now_s, answers)

    # A session of our own: cookies would grow, and a proxy would be measured with the server.
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=load.connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
        headers={"content-type": load.content_type},
    ) as session:
        started_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            if rate_per_s:
                # At random, as if from many independent clients.
                source, due_s = random.Random(_SEED), started_s
                while (due_s := due_s + source.expovariate(rate_per_s)) < started_s + seconds:
                    await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                    # Its time counts from when it should have left: lagging hides no waiting.
                    group.create_task(_ask(session, load, due_s, answers))
            else:
                for _ in range(load.connections):
                    group.create_task(ask_until(session, started_s + seconds))
        answers.seconds = time.perf_counter() - started_s
    return answers


async def _ask(
    session: aiohttp.ClientSession, load: Load, begun_s: float, answers: Answers
) -> None:
    try:
        async with session.post(load.url, data=load.body) as response:
            text = await response.read()
            if response.ok:
                answers.latencies_s.append(time.perf_counter() - begun_s)
            else:
                answers.failures.append(f"{response.status} {text[:300]!r}")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        answers.failures.append(str(error) or type(error).__name__)
        # A closed loop must not spin when no server listens.
        await asyncio.sleep(0.01)
