"""What a large batch costs while it runs, and whether each line is answered once.

    python -m benchmarks.bulk [--lines 1000000]

A handler that takes 1 ms for each batch, `ferry up` with its own Redis, and a feeder that is killed
with SIGKILL three times on the way. Memory is resident bytes, looked at once a second. Exit code
0: no line was lost or doubled; 1: one was; 2: it could not be measured.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.measuring.load import BenchmarkError
from benchmarks.measuring.records import told
from benchmarks.measuring.reports import at_most, finish, positive, to_record
from benchmarks.servers.archives import write_archive
from benchmarks.servers.measured_ferry import MeasuredFerry
from benchmarks.servers.server import Job

LINES = 1_000_000
KILLS = (0.2, 0.5, 0.8)
MODEL, MB = "bulk", 1e6
ROWS = 12
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


class _BulkFerry(MeasuredFerry):
    """Runs and watches one batch."""

    @property
    def url(self) -> str:
        return f"{self._address(1)}/v1"

    def processes(self) -> dict[str, psutil.Process]:
        """Returns the process of each role; the feeder may just be between two lives."""
        found: dict[str, psutil.Process] = {}
        for process in psutil.Process(self.pid).children(recursive=True):
            try:
                words = " ".join(process.cmdline())
            except psutil.Error:
                continue
            for role, mark in ROLES.items():
                if mark in words:
                    found.setdefault(role, process)
                    break
        return found

    def memory_mb(self) -> dict[str, float]:
        found = {}
        for role, process in self.processes().items():
            try:
                found[role] = process.memory_info().rss / MB
            except psutil.Error:
                continue
        return found


def write_input(path: Path, lines: int) -> None:
    """Writes a file of so many lines."""
    with path.open("w", encoding="utf-8") as stream:
        for number in range(lines):
            asked = {"custom_id": f"n-{number}", "method": "POST", "url": f"/predictions/{MODEL}"}
            stream.write(json.dumps(asked | {"body": {"n": number}}) + "\n")


def count(lines: Iterator[str], total: int) -> tuple[int, int]:
    """Returns how many lines of the output are missing, and how many there are more than once."""
    seen = bytearray(total)
    doubled = 0
    for line in lines:
        number = int(json.loads(line)["response"]["body"]["n"])
        doubled += seen[number]
        seen[number] = 1
    return total - sum(seen), doubled


def run(lines: int) -> dict[str, Any]:
    """Runs one batch of so many lines; returns what was seen.

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
        job = Job(MODEL, archive, batch_size=64, max_batch_delay_ms=5)
        data = {"FERRY_DATA_DIR": str(folder / "data")}
        with (
            _BulkFerry(job, data) as server,
            httpx.Client(base_url=server.url, trust_env=False, timeout=600) as http,
        ):
            return _watch(server, http, source, lines)


def _watch(server: _BulkFerry, http: httpx.Client, source: Path, lines: int) -> dict[str, Any]:
    before = server.memory_mb()
    with source.open("rb") as stream:
        answer = http.post("/files", data={"purpose": "batch"}, files={"file": stream})
    file = answer.raise_for_status().json()
    upload = server.memory_mb()
    asked = {"input_file_id": file["id"], "endpoint": "/predictions"}
    batch = http.post("/batches", json=asked).raise_for_status().json()
    curve: list[dict[str, float]] = []
    kills, started_s = list(KILLS), time.monotonic()
    while batch["status"] not in ENDED:
        time.sleep(1.0)
        batch = http.get(f"/batches/{batch['id']}").raise_for_status().json()
        done = batch["request_counts"]["completed"]
        seconds = time.monotonic() - started_s
        curve.append({"seconds": seconds, "done": done, **server.memory_mb()})
        if kills and done >= kills[0] * lines and (feeder := server.processes().get("feeder")):
            feeder.kill()
            kills.pop(0)
    if batch["status"] != "completed":
        raise BenchmarkError(f"the batch is {batch['status']}: {batch['errors']}")
    with http.stream("GET", f"/files/{batch['output_file_id']}/content") as content:
        lost, doubled = count(content.iter_lines(), lines)
    return {
        "lines": lines,
        "file_bytes": file["bytes"],
        "seconds": time.monotonic() - started_s,
        "kills": len(KILLS) - len(kills),
        "before": before,
        "after_upload": upload,
        "after_download": server.memory_mb(),
        "lost": lost,
        "doubled": doubled,
        "curve": curve,
    }


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin and the curve."""
    curve = record["curve"]
    shown = curve[:: max(1, len(curve) // ROWS)]
    rows = [("before", record["before"]), ("uploaded", record["after_upload"])]
    rows += [(f"{one['done']:.0f} lines, {one['seconds']:.0f} s", one) for one in shown]
    rows.append(("output read", record["after_download"]))
    lines = [
        f"`python -m benchmarks.bulk` at {told(record)}; load average before: "
        f"{record['load_average']}. {record['lines']} lines ({record['file_bytes'] / MB:.0f} MB), "
        f"{record['kills']} kills of the feeder, {record['seconds']:.0f} s; resident MB:",
        "",
        f"| | {' | '.join(ROLES)} |",
        "|---|---:|---:|---:|",
    ]
    for name, sizes in rows:
        cells = (f"{sizes[role]:.0f}" if role in sizes else "" for role in ROLES)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes the record; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk")
    parser.add_argument("--lines", type=positive, default=LINES)
    options = parser.parse_args(arguments)
    load_average = round(os.getloadavg()[0], 2)

    def record() -> dict[str, Any]:
        about = {"load_average": load_average, **run(options.lines)}
        text = "{} lines "
        verdicts = [
            at_most(about["lost"], 0, f"{text}lost", "{:.0f}"),
            at_most(about["doubled"], 0, f"{text}doubled", "{:.0f}"),
        ]
        return to_record("a batch of many lines", about, verdicts)

    # The document has no place for it yet.
    return finish("bulk", record, markdown, is_short=True)


if __name__ == "__main__":
    sys.exit(main())
