"""A part that is started without `ferry` says what is wrong with its settings."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("part", ["ingress", "workers"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"REDIS_URL": "redis://127.0.0.1", "FERRY_JOB_QUEUE_SIZE": "0"}, "job_queue_size must be"),
        ({"REDIS_URL": ""}, "redis_url is not set"),
    ],
)
def test_part_says_why_it_cannot_start(part, settings, words):
    # When
    done = subprocess.run(
        [sys.executable, "-m", part],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    # Then
    assert done.returncode == 2
    assert f"cannot start: {words}" in done.stderr
    assert "Traceback" not in done.stderr
