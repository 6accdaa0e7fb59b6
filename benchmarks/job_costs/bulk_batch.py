"""Runs a batch of many lines while its server is killed, and looks at memory and output."""

import base64
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.job_costs.free_seats import HANDLER_MS
from benchmarks.measuring.load import BenchmarkError
from benchmarks.servers.archives import write_archive
from benchmarks.servers.fleet import Fleet
from benchmarks.servers.measured_ferry import MeasuredFerry
from benchmarks.servers.server import Job

MODEL, MB = "bulk", 1e6
BATCH_SIZE, DELAY_MS = 64, 5
HANDLER = """
import time
def handle(data, context):
    if not data:
        return []
    time.sleep(0.001)
    return [row["body"] for row in data]
"""
ROLES = {"feeder": "ingress.bulk", "ingress": "-m ingress", "Redis": "-server"}
ENDED = {"completed", "failed", "expired", "cancelled"}
_LOOK_S = 1.0
_AWAY_S = 60.0  # the longest that a server may be away after it was killed


class BulkFerry(MeasuredFerry):
    """A server that runs a batch, and is killed."""

    @property
    def url(self) -> str:
        return f"{self._address(1)}/v1"

    def kill(self, what: str) -> None:
        """Kills the process of this role, or every process of the server and starts it anew."""
        if what in ROLES:
            self.parts()[what].kill()
            return
        family = psutil.Process(self.pid).children(recursive=True)
        os.kill(self.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=_AWAY_S)
        assert self._folder is not None
        self._start(Path(self._folder.name))
        self._wait_until_healthy()
        self._register()

    def parts(self) -> dict[str, psutil.Process]:
        """Returns the process of each role; one may just be between two lives."""
        found: dict[str, psutil.Process] = {}
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                for role in (role for role, mark in ROLES.items() if mark in words):
                    found.setdefault(role, process)
                    break
        return found

    def memory_mb(self) -> dict[str, float]:
        """Returns the resident memory of each part that runs."""
        found = {}
        for role, process in self.parts().items():
            with contextlib.suppress(psutil.Error):
                found[role] = process.memory_info().rss / MB
        return found

    def _store(self, folder: Path) -> str:
        return str(folder / "store") if (folder / "store").exists() else super()._store(folder)


def write_input(path: Path, count: int, model: str = MODEL, **body: Any) -> None:
    """Writes a file of so many lines; without a body, that is the number of its line."""
    with path.open("w", encoding="utf-8") as stream:
        for number in range(count):
            asked = {"custom_id": f"n-{number}", "method": "POST", "url": f"/predictions/{model}"}
            stream.write(json.dumps(asked | (body or {"body": {"n": number}})) + "\n")


def start_batch(http: httpx.Client, source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Uploads the file and creates a batch of it; returns both."""
    with source.open("rb") as stream:
        answer = http.post("/files", data={"purpose": "batch"}, files={"file": stream})
    file = answer.raise_for_status().json()
    asked = {"input_file_id": file["id"], "endpoint": "/predictions"}
    return file, http.post("/batches", json=asked).raise_for_status().json()


@contextlib.contextmanager
def uploaded(fleet: Fleet, model: str, lines: int) -> Iterator[None]:
    """Has the lines of a batch wait while the block runs: a backlog of `free_seats`."""
    with (
        tempfile.TemporaryDirectory(prefix="bulk-") as folder,
        httpx.Client(base_url=f"{fleet.management_url}/v1", trust_env=False, timeout=60) as http,
    ):
        source = Path(folder, "in.jsonl")
        body = base64.b64encode(str(HANDLER_MS).encode()).decode()
        write_input(source, lines, model, body_b64=body)
        _, batch = start_batch(http, source)
        yield
        url = f"/batches/{batch['id']}"
        http.post(f"{url}/cancel").raise_for_status()
        while http.get(url).raise_for_status().json()["status"] not in ENDED:
            time.sleep(0.1)


def count_output(lines: Iterator[str], total: int) -> tuple[int, int]:
    """Returns how many lines are missing, and how many there are more than once."""
    seen = bytearray(total)
    doubled = 0
    for line in lines:
        number = int(json.loads(line)["response"]["body"]["n"])
        doubled += seen[number]
        seen[number] = 1
    return total - sum(seen), doubled


def run_batch(
    lines: int, kills: dict[float, str], report: Callable[[dict[str, float]], None]
) -> dict[str, Any]:
    """Runs one batch of so many lines; returns what was seen.

    Args:
        lines: of the batch.
        kills: what is killed (a role, or "everything") when which share of the lines is done.
        report: is told each point of the curve.

    Raises:
        BenchmarkError: the batch did not complete.
    """
    with tempfile.TemporaryDirectory(prefix="bulk-") as name:
        folder = Path(name)
        handler, archive, source = folder / "handler.py", folder / "m.mar", folder / "in.jsonl"
        handler.write_text(HANDLER)
        model = {"modelName": MODEL, "modelVersion": "1.0", "handler": handler.name}
        write_archive(archive, model, handler)
        write_input(source, lines)
        job = Job(MODEL, archive, batch_size=BATCH_SIZE, max_batch_delay_ms=DELAY_MS)
        data = {"FERRY_DATA_DIR": str(folder / "data")}
        with (
            BulkFerry(job, data) as server,
            httpx.Client(base_url=server.url, trust_env=False, timeout=600) as http,
        ):
            about: dict[str, Any] = {"lines": lines, "before": server.memory_mb()}
            file, batch = start_batch(http, source)
            about |= {"file_bytes": file["bytes"], "after_upload": server.memory_mb()}
            about["killed"] = list(kills.values())
            started_s = time.monotonic()
            about["curve"] = []
            for point in _watch(server, http, batch["id"], {k * lines: kills[k] for k in kills}):
                about["curve"].append(point)
                report(point)
            about["seconds"] = time.monotonic() - started_s
            output_id = _show(http, batch["id"])["output_file_id"]
            with http.stream("GET", f"/files/{output_id}/content") as content:
                about["lost"], about["doubled"] = count_output(content.iter_lines(), lines)
            return about | {"after_download": server.memory_mb()}


def _watch(
    server: BulkFerry, http: httpx.Client, batch_id: str, kills: dict[float, str]
) -> Iterator[dict[str, float]]:
    """Yields lines done and memory once a second, until the batch has completed and all kills."""
    started_s = time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        batch = _show(http, batch_id)
        done = batch["request_counts"]["completed"]
        yield {"seconds": time.monotonic() - started_s, "done": done, **server.memory_mb()}
        if batch["status"] in ENDED:
            if batch["status"] != "completed" or kills:
                raise BenchmarkError(f"{batch['status']}, {batch['errors']}, not killed: {kills}")
            return
        if kills and done >= min(kills):
            server.kill(kills.pop(min(kills)))


def _show(http: httpx.Client, batch_id: str) -> dict[str, Any]:
    give_up_at_s = time.monotonic() + _AWAY_S
    while True:
        try:
            found: dict[str, Any] = http.get(f"/batches/{batch_id}").raise_for_status().json()
            return found
        except httpx.HTTPError as error:
            if time.monotonic() > give_up_at_s:
                raise BenchmarkError(f"the batch cannot be looked at: {error}") from error
            time.sleep(_LOOK_S)
