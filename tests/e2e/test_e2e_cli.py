"""`ferry`'s own commands against a running server."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ferry_process import FERRY, FerryServer
from tests.ports import free_ports

pytestmark = pytest.mark.slow


class Command:
    """Runs `ferry` against this server."""

    def __init__(self, server: FerryServer) -> None:
        self._addresses = {
            "FERRY_MANAGEMENT_URL": server.management,
            "FERRY_INFERENCE_URL": server.inference,
        }

    def run(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(FERRY), *words],
            env={"PATH": "/usr/bin:/bin", "COLUMNS": "120", **self._addresses},
            input=stdin,
            capture_output=True,
            timeout=30,
            check=False,
        )

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


@pytest.fixture
def ferry(server: FerryServer) -> Command:
    return Command(server)


def test_models_are_registered_listed_described_scaled_and_unregistered(
    server: FerryServer, ferry: Command, scripted: str
) -> None:
    # When a model is registered from the command line
    words = ("--model-name", "typed", "--initial-workers", "1", "--batch-size", "4")
    done = ferry.run("models", "register", scripted, *words)

    # Then it is served, as the server says
    assert done.returncode == 0, done.stderr.decode()
    [text, step] = done.stdout.decode().splitlines()
    assert text == 'Model "typed" Version: 1.0 registered with 1 initial workers'
    assert step == f"Ask it: curl {server.inference}/predictions/typed -T FILE"
    assert server.predict("typed", b"hello").text == "hello"

    # And it is listed and described, for people and for machines
    assert {"modelName": "typed", "modelUrl": scripted} in ferry.json("models", "list")
    assert b"typed" in ferry.run("models", "list").stdout
    [version] = ferry.json("models", "describe", "typed")
    assert version == server.describe("typed")
    described = ferry.run("models", "describe", "typed").stdout.decode()
    assert "typed version 1.0" in described
    assert str(version["workers"][0]["pid"]) in described

    # When it is scaled
    done = ferry.run("models", "scale", "typed", "--min-worker", "2")

    # Then two workers are ready
    assert done.stdout.decode() == "Workers scaled to 2 for model: typed\n"
    assert len(server.worker_pids("typed")) == 2

    # When it is unregistered
    done = ferry.run("models", "unregister", "typed")

    # Then it is gone
    assert done.stdout.decode() == 'Model "typed" unregistered\n'
    assert server.manage("GET", "models/typed").status_code == 404


def test_second_server_on_the_same_ports_is_refused(server: FerryServer, tmp_path: Path) -> None:
    # When a second server is started on the first one's ports
    words = ["up", "--port-base", str(server.port), "--model-store", str(tmp_path)]
    done = subprocess.run([str(FERRY), *words], capture_output=True, timeout=30, check=False)

    # Then it says so, and the first one goes on
    assert done.returncode == 1
    assert "is in use" in done.stderr.decode()
    assert server.http.get(f"{server.inference}/ping", timeout=5).status_code == 200


def test_start_on_a_terminal_keeps_its_own_lines_and_those_of_the_log_apart(tmp_path: Path) -> None:
    # Given
    reader, terminal = os.openpty()
    words = ["up", "--port-base", str(free_ports(3)), "--log-location", str(tmp_path)]
    with subprocess.Popen([FERRY, *words], stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        try:
            # When
            with os.fdopen(reader, errors="replace") as screen:
                lines = []
                while not lines or "Model server started." not in lines[-1]:
                    lines.append(screen.readline().rstrip())
        finally:
            process.terminate()
    # Then
    logged = [line for line in lines if " INFO " in line]
    assert "Starting" in lines
    assert len(logged) >= 4
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in logged)
    assert "\x1b[" not in "".join(logged)
