"""`ferry bench` against a running server."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FERRY, FerryServer

SLOW = """
import time

def handle(data, context):
    if data:
        time.sleep(0.02)
    if any((row.get("body") or b"") == b"fail" for row in data or []):
        raise ValueError("no")
    return data and ["done" for _ in data]
"""

pytestmark = pytest.mark.slow


def bench(server: FerryServer, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(FERRY), "bench", *words, "--duration", "1.5", "--delay", "0"],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "FERRY_MANAGEMENT_URL": server.management,
            "FERRY_INFERENCE_URL": server.inference,
        },
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def registered(server: FerryServer) -> list[str]:
    return [model["modelName"] for model in server.manage("GET", "models").json()["models"]]


def test_bench_shows_what_batching_does_and_leaves_no_model(server, tmp_path):
    # Given a model that takes as long for eight requests as for one
    archive = make_archive(server.store, "napping", {"handler.py": SLOW})
    # When
    done = bench(server, tmp_path, archive, "--batch-sizes", "8", "--clients", "1,16", "--json")
    # Then
    assert done.returncode == 0, done.stderr
    runs = {(run["batch_size"], run["clients"]): run for run in json.loads(done.stdout)}
    assert set(runs) == {(1, 1), (1, 16), (8, 1), (8, 16)}
    assert not any(run["errors"] for run in runs.values())
    assert runs[8, 16]["requests_per_s"] > 1.5 * runs[1, 16]["requests_per_s"]
    assert runs[1, 1]["p50_ms"] >= 20
    # And nothing of it is registered any more
    assert not [name for name in registered(server) if name.startswith("bench-")]
