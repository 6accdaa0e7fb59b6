"""The client's wheel alone, in an empty environment, asks a server."""

import subprocess
from pathlib import Path

import pytest

from packages.client.tests.answering_server import AnsweringServer, answer
from tests.distributions import build_wheels, install

SCRIPT = """
import sys

import ferry_client

with ferry_client.Client(sys.argv[1]) as client:
    print(client.predict("m", {"a": 1}).json())
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_wheel_asks_a_server_and_brings_httpx_alone(tmp_path: Path) -> None:
    # Given
    [wheel] = build_wheels(tmp_path / "wheels", "packages/client")
    python = install(tmp_path / "environment", str(wheel))
    server = AnsweringServer()
    server.will(answer(200, {"cat": 0.9}))
    # When
    with server.running():
        words = [str(python), "-c", SCRIPT, server.url]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    listing = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Then
    assert done.stdout == "{'cat': 0.9}\n", done.stderr
    names = {line.partition("==")[0].lower() for line in listing.stdout.splitlines()}
    assert {"torchferry-client", "httpx"} <= names
    assert not names & {"torchferry", "flask", "redis", "torch", "click"}
