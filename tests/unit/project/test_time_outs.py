"""A time-out that a test's own tasks keep to themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENDLESS = """
import asyncio
import time
import pytest

@pytest.fixture
def slow():
    time.sleep(0.3)  # the time-out counts this, too

async def spin():
    while True:
        pass

async def run():
    await asyncio.wait({asyncio.create_task(spin())})

@pytest.mark.timeout(1)
def test_endless(slow):
    asyncio.run(run())
"""


@pytest.mark.slow
def test_time_out_in_a_task_that_is_never_awaited_is_a_failure(tmp_path):
    # Given
    file = tmp_path / "test_endless.py"
    file.write_text(ENDLESS)
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "pyproject.toml"]

    # When
    command = [sys.executable, "-m", "pytest", *options, file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    # Then
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout
    assert " s of 1 s" in done.stdout
