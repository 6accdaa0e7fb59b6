"""The wheel alone, in an empty environment, answers clients."""

import subprocess
from pathlib import Path

import httpx
import pytest

from tests.distributions import build_wheels, install
from tests.e2e.ferry_process import FerryProcess
from tests.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)]


def test_wheel_answers_clients_and_brings_nothing_of_the_server(tmp_path: Path) -> None:
    # Given
    [wheel] = build_wheels(tmp_path / "wheels", "packages/bulk")
    python = install(tmp_path / "environment", str(wheel))
    listing = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
    )
    # When
    listen = f"127.0.0.1:{free_ports(1)}"
    words = ["--folder", str(tmp_path / "bulk"), "--listen", listen]
    process = FerryProcess(tmp_path, words, program=python.with_name("ferry-bulk"))
    try:
        process.wait_for_line("ferry-bulk listens")
        answer = httpx.get(f"http://{listen}/v1/batches", trust_env=False)
        process.stop_cleanly()
    finally:
        process.kill()
    # Then
    assert answer.json()["data"] == []
    names = {line.partition("==")[0].lower() for line in listing.stdout.splitlines()}
    assert {"torchferry-bulk", "flask", "waitress"} <= names
    assert not names & {"torchferry", "torchferry-client", "redis", "torch", "httpx"}
