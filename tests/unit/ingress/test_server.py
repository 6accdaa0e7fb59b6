"""The ingress as a process: readiness, signals, exit codes."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from batching.models.spec import ModelSpec
from batching.process.part import REPEAT_WINDOW_S
from batching.store.clients import connect
from batching.store.registry.registry import Registry
from tests.ports import free_ports
from tests.support import eventually
from tests.unit.ingress.conftest import DEAD_AFTER_S
from tests.unit.ingress.sockets import connect_to, read_to_end, statuses

pytestmark = pytest.mark.slow  # whole servers on real sockets

ROOT = Path(__file__).parents[3]


class Server:
    """`python -m ingress` on ports of its own."""

    def __init__(self, redis_url, **settings):
        self.ports = {role: free_ports(1) for role in ("inference", "management", "metrics")}
        self.read_fd, write_fd = os.pipe()
        environment = {
            **os.environ,
            "REDIS_URL": redis_url,
            "FERRY_READY_FD": str(write_fd),
            "FERRY_DEAD_AFTER_S": str(DEAD_AFTER_S),
            **{
                f"FERRY_{role.upper()}_ADDRESS": f"http://127.0.0.1:{port}"
                for role, port in self.ports.items()
            },
            **{f"FERRY_{name.upper()}": value for name, value in settings.items()},
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ingress"],
            cwd=ROOT,
            env=environment,
            pass_fds=[write_fd],
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write_fd)

    def ready_lines(self):
        """Blocks until the server is ready or has ended."""
        with os.fdopen(self.read_fd) as pipe:
            return pipe.read().splitlines()

    def url(self, role, path=""):
        return f"http://127.0.0.1:{self.ports[role]}{path}"

    def end(self):
        """Exit code and log."""
        _, log = self.process.communicate(timeout=20)
        return self.process.returncode, log


@pytest.fixture
def start(redis_url):
    servers = []

    def start_server(**settings):
        servers.append(Server(redis_url, **settings))
        return servers[-1]

    yield start_server
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.fixture
def echo_model(redis_url, node):
    registry = Registry(connect(redis_url), dead_after_s=DEAD_AFTER_S)
    spec = ModelSpec("echo", "1.0", "echo.mar", "h.py", min_worker=1, max_worker=1)
    registry.create(spec)
    with registry.changes() as wait:
        while not registry.workers(spec.key):
            wait(5.0)
    return registry, spec


def test_server_says_that_it_is_ready_and_stops_at_sigterm(start):
    # Given
    server = start()
    # When / Then
    assert server.ready_lines() == ["ready"]
    assert requests.get(server.url("inference", "/ping"), timeout=5).status_code == 200
    assert requests.get(server.url("management", "/models"), timeout=5).json() == {"models": []}
    assert "ferry_open_requests" in requests.get(server.url("metrics", "/metrics"), timeout=5).text
    # And each port tells browsers not to guess the type of an answer
    for role in server.ports:
        answer = requests.get(server.url(role, "/none"), timeout=5)
        assert answer.headers["x-content-type-options"] == "nosniff"
    # When
    server.process.send_signal(signal.SIGTERM)
    # Then
    code, log = server.end()
    assert code == 0
    assert "xperimental" not in log
    assert "Traceback" not in log


def probes(server):
    routes = ("/ping", "/readyz", "/v2/health/ready", "/livez")
    return [requests.get(server.url("inference", route), timeout=5).status_code for route in routes]


def test_server_is_not_ready_before_its_startup_models_are_registered(start):
    # Given: a startup model, and no node to load it
    server = start(load_models="a.mar")
    eventually(lambda: accepts(server.ports["inference"]), 60)
    # When, Then
    assert probes(server) == [500, 503, 503, 200]
    reason = requests.get(server.url("inference", "/readyz"), timeout=5).json()
    assert reason == {"status": "Loading models"}


def test_server_that_stops_while_it_loads_leaves_the_newest_snapshot_alone(start, tmp_path):
    # Given one that waits for a node, and drains for long enough to notice
    server = start(load_models="echo.mar", snapshot_dir=str(tmp_path), drain_delay_s="2")
    eventually(lambda: accepts(server.ports["inference"]), 60)
    # When
    server.process.terminate()
    # Then
    assert server.end()[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_server_that_comes_back_is_as_ready_as_what_redis_remembers(start, echo_model):
    # Given
    server = start(load_models="a.mar")
    eventually(lambda: accepts(server.ports["inference"]), 60)
    # When, Then
    assert probes(server) == [200] * 4


@pytest.fixture
def waiting(node, echo_model):
    """Sends a prediction that no worker claims; returns the future of its answer."""
    registry, spec = echo_model
    node.pause()
    with ThreadPoolExecutor(1) as pool:

        def send(server):
            url = server.url("inference", "/predictions/echo")
            asked = pool.submit(requests.post, url, b"x", timeout=20)
            eventually(lambda: registry.queue(spec).open_requests == 1 or asked.done(), 10)
            assert not asked.done(), asked.result().text
            return asked

        yield send


def test_server_refuses_what_is_still_open_when_the_drain_ends(start, waiting):
    # Given
    server = start(drain_timeout_s="0.3")
    server.ready_lines()
    asked = waiting(server)
    # When
    server.process.send_signal(signal.SIGTERM)
    # Then
    answer = asked.result()
    assert answer.status_code == 503
    assert answer.headers["x-ferry-reason"] == "draining"
    status, log = server.end()
    assert status == 0
    assert "refusing open=1\n" in log
    assert "cutting off" not in log


def test_server_refuses_a_request_whose_body_has_not_come_when_the_drain_ends(start):
    # Given
    server = start(drain_delay_s="0.5", drain_timeout_s="0.3")
    server.ready_lines()
    with connect_to(server.url("inference")) as client:
        client.sendall(b"POST /predictions/m HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nbody")
        # When
        server.process.send_signal(signal.SIGTERM)
        # Then
        answer = read_to_end(client)
    assert statuses(answer) == [503]
    assert b"x-ferry-reason: draining\r\n" in answer
    assert server.end()[0] == 0


def test_second_signal_ends_the_server_at_once(start, waiting):
    # Given
    server = start(drain_timeout_s="60")
    server.ready_lines()
    waiting(server)
    # When
    server.process.send_signal(signal.SIGINT)
    eventually(lambda: not accepts(server.ports["inference"]), 10)
    seen_s = time.monotonic()  # after the server has seen the signal: it counts from there
    eventually(lambda: time.monotonic() > seen_s + REPEAT_WINDOW_S)
    server.process.send_signal(signal.SIGINT)
    # Then
    assert server.end()[0] == 1


def test_server_serves_everything_on_one_address_and_on_a_unix_socket(start, tmp_path):
    # Given
    port = free_ports(1)
    one = f"http://127.0.0.1:{port}"
    server = start(
        inference_address=one,
        management_address=one,
        metrics_address=f"unix:{tmp_path / 'metrics.sock'}",
    )
    # When
    server.ready_lines()
    # Then
    assert requests.get(f"{one}/ping", timeout=5).json() == {"status": "Healthy"}
    assert requests.get(f"{one}/models", timeout=5).json() == {"models": []}
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "metrics.sock"))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_server_goes_on_accepting_for_the_drain_delay_after_it_is_not_ready(
    start, node, echo_model
):
    # Given
    server = start(drain_delay_s="3.0")
    server.ready_lines()
    # When
    server.process.send_signal(signal.SIGTERM)
    ready = server.url("inference", "/readyz")
    eventually(lambda: requests.get(ready, timeout=5).status_code == 503, 10)
    # Then a client that has not noticed yet is served
    answer = requests.post(server.url("inference", "/predictions/echo"), b"x", timeout=5)
    assert answer.content == b"body:|x"
    assert server.end()[0] == 0
