"""B11, B12 and B16 on the running server: addresses, keys, odd answers of handlers."""

import contextlib
import os
import signal
import socket

import psutil
import pytest

from batching.store.clients import connect
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.chaos.rig import Rig
from tests.e2e.archives import make_archive, make_scripted
from tests.redis_users import PASSWORD, USERS, add_user
from tests.support import command_lines

pytestmark = pytest.mark.slow

ODD_ANSWERS = """
import math

CASES = {
    b"nan": [math.nan],
    b"object": [object()],
    b"itself": None,
    b"large": [b"x" * 200_000_000],
    b"bytes": [b"fine"],
    b"few": [],
    b"many": [1, 2],
    b"scalar": 7,
    b"key": [{(1, 2): 3}],
    b"surrogate": ["\\ud800"],
    b"generator": [(x for x in ())],
    b"set": [{1}],
    b"none": None,
    b"lazy": (x for x in [1]),
}
CASES[b"itself"] = [CASES]
def handle(data, context):
    return None if data is None else CASES[bytes(data[0]["body"])]
"""


def test_b12_server_listens_on_loopback_only(server):
    # Given every process of the server
    pids = {int(line.split()[0]) for line in server.process.family()}
    pids |= {child for pid in pids for child in command_lines(pid)}
    assert len(pids) >= 4  # ferry, Redis, which has an environment of its own, node, ingress

    # When
    listening = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that ends meanwhile
            listening += [
                connection.laddr
                for connection in psutil.Process(pid).net_connections(kind="inet")
                if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
            ]

    # Then there are the three HTTP ports and nothing else, neither Redis nor a worker
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening} == {
        server.port,
        server.port + 1,
        server.port + 2,
    }


@pytest.fixture(scope="module")
def odd(server):
    archive = make_archive(server.store, "odd", {"handler.py": ODD_ANSWERS})
    with server.model(archive, "odd") as name:
        yield name


def test_b16_odd_answers_of_a_handler_are_errors_with_a_reason_and_kill_no_worker(server, odd):
    # Given
    pids = server.worker_pids(odd)
    unfit = ["object", "itself", "few", "many", "scalar", "key", "surrogate", "generator", "set"]
    unfit += ["none", "lazy"]
    # json.dumps writes NaN, as TorchServe's worker does
    expected = dict.fromkeys(unfit, 503) | {"large": 500, "nan": 200, "bytes": 200}

    # When
    answers = {name: server.predict(odd, name.encode()) for name in expected}

    # Then
    assert {name: answer.status_code for name, answer in answers.items()} == expected
    for answer in answers.values():
        if answer.status_code != 200:
            assert answer.json()["type"] == "InternalServerException"
            assert answer.json()["message"]
            assert answer.headers["x-ferry-reason"]
    assert server.worker_pids(odd) == pids


@pytest.fixture
def guarded_redis():
    """A Redis with the users of deploy/redis; the nameless one is this test's own way in."""
    with EmbeddedRedis(find_server()) as redis:
        client = connect(redis.url)
        for name in USERS.keys() - {"default"}:
            add_user(client, name)
        client.close()
        yield redis


class GuardedRig(Rig):
    """An ingress and a node, each with its own user of Redis."""

    def launch(self, words):
        user = "ingress" if words[0] == "ingress" else "worker"
        url = self.redis_url.replace("unix://", f"unix://{user}:{PASSWORD}@")
        return super().launch([url if word == self.redis_url else word for word in words])


def check_jobs(rig):
    """Has jobs submitted, found again, done, listed, cancelled and tried again."""
    for body in (b"small", b"small", b"large" * 60_000):
        headers = {"Prefer": "respond-async", "Idempotency-Key": f"{len(body)}"}
        answer = rig.predict("scripted", body, headers=headers)
        job = answer.json()
        result = rig.http.get(job["result_url"], headers={"Prefer": "wait=20"}, timeout=30)
        assert (answer.status_code, result.content) == (202, body)
        assert rig.http.get(job["cancel_url"], timeout=20).status_code == 200
    assert rig.http.delete(job["cancel_url"], timeout=20).status_code == 200
    assert len(rig.manage("GET", "jobs").json()["jobs"]) == 2
    assert rig.manage("POST", "jobs/retry").json() == {"jobs": 0}


@pytest.mark.timeout(240)
def test_redis_users_are_enough_for_a_whole_day_of_work(guarded_redis, tmp_path):
    # Given
    rig = GuardedRig(tmp_path, guarded_redis.url)
    try:
        # When models come and go, requests are served, and a worker is killed under them
        rig.register(make_scripted(rig.store, "scripted")[0])
        for body in (b"small", b"large" * 60_000):
            assert rig.predict("scripted", body).content == body
        os.kill(rig.worker_pids("scripted")[0], signal.SIGKILL)
        assert rig.predict("scripted", b"again").content == b"again"
        check_jobs(rig)
        scaled = rig.manage("PUT", "models/scripted", min_worker=2, synchronous="true")
        assert scaled.status_code == 200
        rig.redis.script_flush()
        assert rig.predict("scripted", b"reloaded").content == b"reloaded"
        ready = rig.http.get(f"{rig.inference}/readyz", timeout=20)
        assert ready.json() == {"status": "Ready"}
        assert rig.http.get(f"{rig.metrics}/metrics", timeout=20).status_code == 200
        assert rig.manage("DELETE", "models/scripted").status_code == 200

        # Then both end well and Redis has denied them nothing
        for part in (rig.process, *rig.nodes):
            assert part.stop(signal.SIGTERM).exit_code == 0
        denied = {(entry["username"], entry["object"]) for entry in rig.redis.acl_log()}
        assert denied == set()
    finally:
        rig.close()
