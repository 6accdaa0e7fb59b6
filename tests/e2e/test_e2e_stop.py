"""Ctrl-C: exit code 0 within 8 s, everything accepted is answered, no process is left."""

import os
import signal
import socket
from pathlib import Path

import pytest
import requests

from tests.e2e.archives import Ledger, make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import STOP_TIMEOUT_S, FerryProcess, FerryServer
from tests.support import came_true, eventually
from tests.timing import assert_within

ROOT = Path(__file__).parents[2]
DEMO_TIMEOUT_S = 60
DEMO_PORTS = (8080, 8081, 8082)

pytestmark = pytest.mark.slow


@pytest.fixture
def own_server(tmp_path):
    """A server that the test stops itself, with a model loaded at start."""
    store = tmp_path / "store"
    store.mkdir()
    archive, _ = make_scripted(store, "loaded", config="minWorkers: 2\nmaxWorkers: 2\n")
    server = FerryServer(tmp_path, "--models", f"loaded={archive}")
    try:
        server.wait_started()
        yield server
    finally:
        server.process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_stop_answers_what_is_running_and_leaves_no_process(own_server, number):
    # Given requests at work
    with Clients(own_server.inference, 2) as clients:
        clients.send("/predictions/loaded", ["hold|a", "hold|b"])
        ledger = Ledger(own_server.store / "loaded-1.0.ledger")
        eventually(lambda: len(ledger.calls()) == 2, 10)
        assert len(own_server.process.family()) >= 6

        # When the server is told to stop, group and all, as a terminal does it
        process = own_server.process
        stopped = process.stop_by(lambda: (os.killpg(process.pid, number), ledger.let_go()))

        # Then the requests have their answers
        answers = clients.receive(2)
    assert [answer.body for answer in answers] == [b"hold|a", b"hold|b"]

    # And it ends with exit code 0, in time, without a process left
    assert stopped.exit_code == 0, own_server.process.log()
    assert_within(stopped.seconds, STOP_TIMEOUT_S)
    assert stopped.left_behind == []


def test_killed_server_takes_its_processes_along(own_server):
    # When the server is killed without a chance to clean up
    os.kill(own_server.process.pid, signal.SIGKILL)

    # Then none of its processes stays
    assert came_true(lambda: not own_server.process.family(), 5), own_server.process.family()


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.timeout(DEMO_TIMEOUT_S + 60)
def test_make_demo_shows_the_digits_and_ctrl_c_leaves_nothing(tmp_path):
    if not all(is_free(port) for port in DEMO_PORTS):
        pytest.skip("the demo's ports 8080 to 8082 are in use")

    # Given the demo in an environment that is installed already
    installed = ("-o", ".venv/.installed")
    words = ["--no-print-directory", "-C", str(ROOT), *installed, "demo"]
    keyboard, terminal = os.openpty()
    environment = {"PYTHONUNBUFFERED": "1"}
    demo = FerryProcess(tmp_path, words, program="make", environment=environment, terminal=terminal)
    try:
        demo.wait_for_line("Ctrl-C stops it.", DEMO_TIMEOUT_S)
        shown = demo.log()
        assert "Model server started." in shown
        assert "right" in shown
        assert "batches the server formed" in shown
        assert requests.get("http://127.0.0.1:8080/ping", timeout=5).status_code == 200

        # When a user presses Ctrl-C
        stopped = demo.stop_by(lambda: os.write(keyboard, b"\x03"))
    finally:
        demo.kill()
        os.close(keyboard)
        os.close(terminal)

    # Then it ends with exit code 0, in time, without a process left
    assert stopped.exit_code == 0, demo.log()
    assert_within(stopped.seconds, STOP_TIMEOUT_S)
    assert stopped.left_behind == []
