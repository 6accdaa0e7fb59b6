"""A part that is started without `ferry` says what is wrong with its settings."""

import os
import signal
import subprocess
import sys

import pytest

from batching.models.statuses import NodeStatus
from batching.protocol import WIRE_VERSION
from tests.ports import free_ports


def start(part, settings):
    return subprocess.run(
        [sys.executable, "-m", part],
        env={**os.environ, "REDIS_URL": "redis://127.0.0.1:1", **settings},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("part", "settings", "words"),
    [
        ("ingress", {"REDIS_URL": ""}, "redis_url is not set"),
        ("ingress", {"FERRY_METRICS_CONFIG": "/nowhere"}, "metrics_config: cannot read /nowhere"),
        ("workers", {"FERRY_JOB_QUEUE_SIZE": "0"}, "job_queue_size must be"),
    ],
)
def test_part_says_why_it_cannot_start(part, settings, words):
    done = start(part, settings)
    assert done.returncode == 2
    assert f"cannot start: {words}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("part", ["ingress", "workers"])
def test_part_does_not_start_beside_nodes_of_another_release(part, real_harness):
    # Given
    real_harness.join(NodeStatus("node-b", "host", 1, "now", wire_version=WIRE_VERSION + 1))
    # When
    # A slow start must not find that node dead.
    settings = {"REDIS_URL": real_harness.backend.url, "FERRY_DEAD_AFTER_S": "60"}
    done = start(part, settings)
    # Then the next start may succeed, once they have gone
    assert done.returncode == 1
    assert "cannot start: nodes of another release are at work on this Redis" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("hears_hangup")
@pytest.mark.parametrize(
    ("part", "begun"), [("ingress", "listening address="), ("workers", " started\n")]
)
def test_part_whose_terminal_is_closed_stops_as_one_that_is_told_to(
    part, begun, real_backend, tmp_path
):
    # Given
    port = free_ports(3)
    settings = {"REDIS_URL": real_backend.url, "FERRY_WORK_DIR": str(tmp_path)} | {
        f"FERRY_{name}_ADDRESS": f"http://127.0.0.1:{port + number}"
        for number, name in enumerate(("INFERENCE", "MANAGEMENT", "METRICS"))
    }
    with subprocess.Popen(
        [sys.executable, "-m", part],
        env={**os.environ, **settings},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        log = next(line for line in process.stderr if begun in line)
        # When
        process.send_signal(signal.SIGHUP)
        log += process.stderr.read()
    # Then
    assert process.returncode == 0, log
    assert "stopped\n" in log
