"""B11, B12 and B16 on the running server: addresses, keys, odd answers of handlers."""

import contextlib
import os
import signal
import socket

import psutil
import pytest
import requests

from batching.store.clients import connect
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.e2e.archives import make_archive, make_scripted
from tests.e2e.ferry_process import FerryProcess
from tests.ports import free_ports
from tests.redis_users import PASSWORD, USERS, add_user
from tests.support import command_lines, eventually

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


def check_jobs(inference: str, management: str) -> None:
    """Has jobs submitted, found again, done, listed, cancelled and tried again."""
    for body in (b"small", b"small", b"large" * 60_000):
        headers = {"Prefer": "respond-async", "Idempotency-Key": f"{len(body)}"}
        url = f"{inference}/predictions/scripted"
        answer = requests.post(url, body, headers=headers, timeout=20)
        job = answer.json()
        result = requests.get(job["result_url"], headers={"Prefer": "wait=20"}, timeout=30)
        assert (answer.status_code, result.content) == (202, body)
        assert requests.get(job["cancel_url"], timeout=20).status_code == 200
    assert requests.delete(job["cancel_url"], timeout=20).status_code == 200
    listed = requests.get(f"{management}/jobs", timeout=20).json()["jobs"]
    assert len(listed) == 2
    assert requests.post(f"{management}/jobs/retry", timeout=20).json() == {"jobs": 0}


@pytest.mark.timeout(240)
def test_redis_users_are_enough_for_a_whole_day_of_work(guarded_redis, tmp_path):
    # Given an ingress and a node, each with its own user
    base, store = free_ports(3), tmp_path / "store"
    store.mkdir()
    archive, _ = make_scripted(store, "scripted")
    inference, management = f"http://127.0.0.1:{base}", f"http://127.0.0.1:{base + 1}"
    url = guarded_redis.url.replace("unix://", f"unix://{{}}:{PASSWORD}@")
    addresses = ["--inference-address", inference, "--management-address", management]
    addresses += ["--metrics-address", f"http://127.0.0.1:{base + 2}"]
    node_options = ["--redis-url", url.format("worker"), "--model-store", str(store)]
    node = FerryProcess(tmp_path, ["node", *node_options])
    ingress = FerryProcess(tmp_path, ["ingress", "--redis-url", url.format("ingress"), *addresses])
    admin = connect(guarded_redis.url)
    try:
        ingress.wait_for_line("listening")
        eventually(lambda: admin.zcard("{ferry}:nodes"), 20)

        # When models come and go, requests are served, and a worker is killed under them
        query = {"url": archive, "initial_workers": 1, "synchronous": "true"}
        answer = requests.post(f"{management}/models", params=query, timeout=30)
        assert answer.status_code == 200, answer.text
        for body in (b"small", b"large" * 60_000):
            predicted = requests.post(f"{inference}/predictions/scripted", body, timeout=20)
            assert predicted.content == body
        (model,) = requests.get(f"{management}/models/scripted", timeout=20).json()
        os.kill(model["workers"][0]["pid"], signal.SIGKILL)
        predicted = requests.post(f"{inference}/predictions/scripted", b"again", timeout=20)
        assert predicted.content == b"again"
        check_jobs(inference, management)
        scaled = {"min_worker": 2, "synchronous": "true"}
        answer = requests.put(f"{management}/models/scripted", params=scaled, timeout=30)
        assert answer.status_code == 200
        admin.script_flush()
        predicted = requests.post(f"{inference}/predictions/scripted", b"reloaded", timeout=20)
        assert predicted.content == b"reloaded"
        assert requests.get(f"{inference}/readyz", timeout=20).json() == {"status": "Ready"}
        assert requests.get(f"http://127.0.0.1:{base + 2}/metrics", timeout=20).status_code == 200
        assert requests.delete(f"{management}/models/scripted", timeout=20).status_code == 200

        # Then both end well and Redis has denied them nothing
        assert ingress.stop(signal.SIGTERM).exit_code == 0
        assert node.stop(signal.SIGTERM).exit_code == 0
        denied = {(entry["username"], entry["object"]) for entry in admin.acl_log()}
        assert denied == set()
    finally:
        node.kill()
        ingress.kill()
        admin.close()
