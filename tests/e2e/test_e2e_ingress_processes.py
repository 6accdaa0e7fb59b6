"""Two ingress processes behind the ports of one host."""

import contextlib
import http.client
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.archives import Ledger, make_scripted
from tests.e2e.ferry_process import FerryProcess, FerryServer
from tests.e2e.metrics_text import Scrape
from tests.ports import free_ports
from tests.support import command_lines, eventually
from tests.topology.whole_suite import own_redis

CONNECTIONS = 32
# Of 32 connections, one process in 10,000,000 runs has fewer than this.
FEWEST = 3
TIMEOUT_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Connection:
    """A client's connection, and the ingress process that has accepted it."""

    def __init__(self, port: int, parent_pid: int, token: str = "") -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http.connect()
        own_port = self._http.sock.getsockname()[1]
        self.pid: int = eventually(lambda: accepted_by(own_port, parent_pid), 10)

    def send(self, path: str, body: str = "", method: str = "POST") -> None:
        self._http.request(method, path, body, self._headers)

    def receive(self) -> tuple[int, str]:
        answer = self._http.getresponse()
        return answer.status, answer.read().decode()

    def ask(self, path: str, body: str = "", method: str = "POST") -> tuple[int, str]:
        self.send(path, body, method)
        return self.receive()

    def close(self) -> None:
        self._http.close()


def ingress_pids(parent_pid: int) -> list[int]:
    parts = command_lines(parent_pid)
    return [pid for pid, words in parts.items() if words[-2:] == ["-m", "ingress"]]


def accepted_by(client_port: int, parent_pid: int) -> int:
    for pid in ingress_pids(parent_pid):
        with contextlib.suppress(psutil.Error):
            connections = psutil.Process(pid).net_connections("tcp")
            if any(one.raddr and one.raddr.port == client_port for one in connections):
                return pid
    return 0


class Host:
    """`ferry up` with two ingress processes and tokens."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.keys = folder / "keys.json"
        words = ("--ingress-processes", "2", "--key-file", str(self.keys), *arguments)
        self.server = FerryServer(folder, *words)
        self.pid = self.server.process.pid
        self.opened: list[Connection] = []

    def wait_started(self) -> None:
        self.server.wait_started()
        self.server.http.headers["authorization"] = f"Bearer {self.token('management')}"

    def token(self, scope: str) -> str:
        return str(json.loads(self.keys.read_text())[scope]["key"])

    def pids(self) -> list[int]:
        return ingress_pids(self.pid)

    def connect(self, scope: str = "inference", token: str = "") -> Connection:
        port = self.server.port + (scope != "inference")
        self.opened.append(Connection(port, self.pid, token or self.token(scope)))
        return self.opened[-1]

    def connect_to_each(self, scope: str = "inference", token: str = "") -> list[Connection]:
        """Returns a connection to each process, in the order of their ids."""
        found: dict[int, Connection] = {}
        while len(found) < 2:
            one = self.connect(scope, token)
            found.setdefault(one.pid, one)
        return [found[pid] for pid in sorted(found)]

    def disconnect(self) -> None:
        while self.opened:
            self.opened.pop().close()


@pytest.fixture(scope="module")
def running_host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    (folder / "store").mkdir()
    archive, _ = make_scripted(folder / "store", "loaded", config="minWorkers: 1\nmaxWorkers: 1\n")
    running = Host(folder, "--models", archive)
    running.wait_started()
    try:
        yield running
        running.server.process.stop_cleanly()
        assert list((folder / "tmp").iterdir()) == []
    finally:
        running.server.process.kill()


@pytest.fixture
def host(running_host):
    yield running_host
    running_host.disconnect()


def test_connections_are_spread_over_the_processes(host):
    # When
    connections = [host.connect() for _ in range(CONNECTIONS)]
    answers = [one.ask("/predictions/loaded", "x") for one in connections]
    # Then
    assert answers == [(200, "x")] * CONNECTIONS
    spread = Counter(one.pid for one in connections)
    assert sorted(spread) == sorted(host.pids())
    assert min(spread.values()) >= FEWEST


def test_one_process_loads_and_saves_the_models(host):
    # Given / When
    log = host.server.process.log()
    # Then
    assert log.count("registered model=loaded") == 1
    assert log.count("saved snapshot=") == 1


def test_model_that_one_process_registers_is_served_by_the_other(host):
    # Given
    archive, _ = make_scripted(host.server.store, "new")
    manager, _ = host.connect_to_each("management")
    _, client = host.connect_to_each()
    assert manager.pid != client.pid
    assert client.ask("/predictions/new", "x")[0] == 404
    # When
    asked = f"/models?url={archive}&initial_workers=1&synchronous=true"
    assert manager.ask(asked)[0] == 200
    # Then
    assert client.ask("/predictions/new", "x") == (200, "x")
    # When
    assert manager.ask("/models/new", method="DELETE")[0] == 200
    # Then
    eventually(lambda: client.ask("/predictions/new", "x")[0] == 404)


def test_token_that_one_process_renews_opens_the_other(host):
    # Given
    api = host.connect_to_each("management", host.token("API"))[0]
    # When
    assert api.ask("/token?type=inference", method="GET")[0] == 200
    # Then
    _, other = host.connect_to_each()
    assert other.pid != api.pid
    assert other.ask("/predictions/loaded", "x") == (200, "x")


def test_killed_process_takes_only_its_own_connections_along(host):
    # Given requests of both processes at work, and all earlier ones counted
    connections = [host.connect() for _ in range(CONNECTIONS)]
    before = Scrape(host.server).value("ferry_requests_total", model="loaded")
    for one in connections:
        one.send("/predictions/loaded", "hold|")
    ledger = Ledger(host.server.store / "loaded-1.0.ledger")
    eventually(lambda: ledger.executions("hold|"), 10)
    victim = connections[0].pid
    survivors = [one for one in connections if one.pid != victim]

    # When one process is killed
    os.kill(victim, signal.SIGKILL)
    ledger.let_go()

    # Then the connections of the other one have their answers
    assert [one.receive() for one in survivors] == [(200, "hold|")] * len(survivors)
    for one in set(connections) - set(survivors):
        with pytest.raises((http.client.HTTPException, OSError)):
            one.receive()

    # And another one takes its place, and what both have counted is one sum
    found = eventually(lambda: with_answering(host.server, 2), 20)
    assert len(host.pids()) == 2
    total = found.value("ferry_requests_total", model="loaded")
    assert total == before + len(survivors)
    newcomer = next(one for one in host.connect_to_each() if one.pid != survivors[0].pid)
    assert newcomer.ask("/predictions/loaded", "x") == (200, "x")
    assert Scrape(host.server).value("ferry_requests_total", model="loaded") == total + 1


def with_answering(server: FerryServer, count: int) -> Scrape | None:
    scrape = Scrape(server)
    is_whole = scrape.value("ferry_ingress_processes", state="answering") == count
    return scrape if is_whole else None


@contextlib.contextmanager
def ingress_alone(folder: Path, *more: str) -> Iterator[tuple[FerryProcess, str]]:
    """Runs `ferry ingress`, as containers do; gives the URL of its management port, too."""
    port = free_ports(3)
    names = ("inference", "management", "metrics")
    words = [
        word
        for number, name in enumerate(names)
        for word in (f"--{name}-address", f"http://127.0.0.1:{port + number}")
    ]
    with own_redis() as redis_url:
        process = FerryProcess(folder, ["ingress", *words, "--redis-url", redis_url, *more])
        try:
            yield process, f"http://127.0.0.1:{port + 1}"
        finally:
            process.kill()


def test_ingress_alone_has_several_processes_where_the_setting_says_so(tmp_path):
    with ingress_alone(tmp_path, "--ingress-processes", "2") as (ingress, _):
        # Given
        eventually(lambda: ingress.log().count("roles=metrics") == 2, 30)
        assert len(ingress_pids(ingress.pid)) == 2
        # When
        stopped = ingress.stop(signal.SIGTERM)
        # Then
        assert (stopped.exit_code, stopped.left_behind) == (0, []), ingress.log()
        assert "did not stop" not in ingress.log()
