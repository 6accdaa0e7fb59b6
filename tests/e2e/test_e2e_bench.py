"""`ferry bench batching` against a running server."""

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
    return data and ["done" for _ in data]
"""


@pytest.mark.slow
def test_bench_shows_what_batching_does_and_leaves_no_model(
    server: FerryServer, tmp_path: Path
) -> None:
    # Given a model that takes as long for eight requests as for one
    archive = make_archive(server.store, "napping", {"handler.py": SLOW})
    # When
    words = ["--batch-sizes", "8", "--delays", "0", "--duration", "1.5", "--connections", "16"]
    done = subprocess.run(
        [
            str(FERRY),
            "bench",
            "batching",
            archive,
            *words,
            "--json",
            "--out",
            str(tmp_path / "out"),
        ],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "FERRY_MANAGEMENT_URL": server.management,
            "FERRY_INFERENCE_URL": server.inference,
            "FERRY_METRICS_URL": f"{server.metrics}/metrics",
        },
        capture_output=True,
        timeout=50,
        check=False,
    )
    # Then
    assert done.returncode == 0, done.stderr.decode()
    single, batched = json.loads(done.stdout)["points"]
    assert (single["errors"], batched["errors"]) == (0, 0)
    assert single["mean_batch"] == 1.0
    assert batched["mean_batch"] > 2
    assert batched["requests_per_s"] > 1.5 * single["requests_per_s"]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"chart.png", "report.json"}
    # And nothing of it is registered any more
    names = [model["modelName"] for model in server.manage("GET", "models").json()["models"]]
    assert not [name for name in names if name.startswith("bench-")]
