"""Who registers an archive that is not there hears where it was looked for, if they may."""

import subprocess
from pathlib import Path

import pytest
import requests

from tests.e2e.ferry_process import FERRY, FerryProcess, FerryServer
from tests.ports import free_ports

pytestmark = pytest.mark.slow


def test_operator_hears_where_an_archive_was_looked_for(server: FerryServer) -> None:
    # Given
    (server.store / "only-here.mar").touch()
    words = ["models", "register", "only-her.mar", "--management-url", server.management]
    # When
    done = subprocess.run([FERRY, *words], capture_output=True, text=True, check=False)
    # Then
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Model not found at: only-her.mar")
    assert f"Did you mean only-here.mar? It was looked for in {server.store}" in done.stderr


def test_client_of_another_machine_hears_nothing_of_the_store(tmp_path: Path) -> None:
    # Given
    port = free_ports(3)
    process = FerryProcess(
        tmp_path,
        [
            *("up", "--model-store", str(tmp_path), "--models", "absent.mar"),
            *("--inference-address", f"http://127.0.0.1:{port}"),
            *("--management-address", f"http://0.0.0.0:{port + 1}", "--allow-open-management"),
            *("--metrics-address", f"http://127.0.0.1:{port + 2}"),
        ],
    )
    try:
        process.wait_for_line("Model server started.")
        # When
        url = f"http://127.0.0.1:{port + 1}/models"
        answer = requests.post(url, params={"url": "absent.mar"}, timeout=30)
    finally:
        process.kill()
    # Then
    assert answer.json()["message"] == "Model not found at: absent.mar"
    # But who started the server does
    said = f"Model not found at: absent.mar. It was looked for in {tmp_path}"
    assert f"not loaded: absent.mar: {said}" in process.log()
