"""What becomes of a server's output reaches neither its start nor its answers."""

import os

import pytest
import requests

from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FERRY, FerryProcess
from tests.ports import free_ports
from tests.support import eventually
from tests.topology.whole_suite import own_redis

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HANDLER = r"""
import os, sys

class Handler:
    def initialize(self, context):
        print("initialized")

    def handle(self, data, context):
        print("x" * 4000)
        print(".", end="", flush=True)
        sys.stdout.buffer.write(b"\xff\xfe\n")
        os.write(1, b"\x80 of no encoding\n")
        os.write(2, b"\xff\n")
        return ["answer"] * len(data)
"""
REQUESTS = 500  # more than is kept for an output that takes nothing


class Fifo:
    """A pipe by name, whose reader reads nothing."""

    def __init__(self, folder, *, is_full):
        self.path = folder / "fifo"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        while is_full:
            try:
                os.write(self._fd, b"x" * 4096)
            except BlockingIOError:
                break

    def close(self):
        """Goes; from then on, nobody can write."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


@pytest.fixture(params=["full", "closed", "gone", "unread"])
def output(request, tmp_path):
    """Gives the shell's word for an output of this kind, and what makes it so after the start."""
    if request.param in ("full", "closed"):
        yield {"full": "/dev/full", "closed": "&-"}[request.param], lambda: None
        return
    fifo = Fifo(tmp_path, is_full=request.param == "unread")
    yield str(fifo.path), fifo.close if request.param == "gone" else lambda: None
    fifo.close()


@pytest.fixture(params=["up", "node"])
def addresses(request, output, tmp_path):
    """Starts a server with that output; where predictions and management are, and metrics."""
    target, act = output
    archive = make_archive(tmp_path, "chatty", {"handler.py": HANDLER})
    port = free_ports(3)
    roles = ("inference", "management", "metrics")
    found = [f"http://127.0.0.1:{port + number}" for number in range(3)]
    environment = {
        f"FERRY_{role.upper()}_ADDRESS": url for role, url in zip(roles, found, strict=True)
    }
    environment["FERRY_METRIC_TIME_INTERVAL_S"] = "1"
    store = ["--model-store", str(tmp_path)]
    processes = []

    def start(*words):
        closing = f'exec "$0" "$@" >{target} 2>{target}'
        arguments = ["-c", closing, str(FERRY), *words, *store]
        processes.append(FerryProcess(tmp_path, arguments, program="sh", environment=environment))

    with own_redis() as environment["REDIS_URL"]:
        try:
            if request.param == "node":
                start("node")
                start("ingress", "--models", archive)
            else:
                start("up", "--models", archive)
            eventually(lambda: any(p.has_ended() for p in processes) or is_served(found[0]), 60)
            act()
            yield found
            # Then
            for process in reversed(processes):
                process.stop_cleanly()
        finally:
            for process in processes:
                process.kill()


def is_served(url):
    try:
        return requests.get(f"{url}/readyz", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


def test_output_of_any_kind_costs_no_answer_and_no_registration(addresses, output, tmp_path):
    # When
    inference, management, metrics = addresses
    with requests.Session() as http:
        url = f"{inference}/predictions/chatty"
        answers = {http.post(url, data=b"x", timeout=5).text for _ in range(REQUESTS)}
        # Then
        assert answers == {"answer"}
        # And
        query = "url=chatty-1.0.mar&model_name=other&initial_workers=1&synchronous=true"
        assert http.post(f"{management}/models?{query}", timeout=60).status_code == 200
        query = "min_worker=2&synchronous=true"
        assert http.put(f"{management}/models/other?{query}", timeout=60).status_code == 200
        log = tmp_path / "logs" / "model_log.log"
        if log.exists():
            eventually(lambda: log.read_bytes().count(b"x" * 4000) == REQUESTS)
        elif output[0] != "&-":

            def dropped(part):
                lines = http.get(f"{metrics}/metrics", timeout=5).text.splitlines()
                name = f"ferry_{part}_lines_dropped_total"
                return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

            eventually(lambda: dropped("node") > 100, 10)
            assert (dropped("ingress") > 0) == (output[0] == "/dev/full")
