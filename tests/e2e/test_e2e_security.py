"""B11, B12 and B16 on the running server: addresses, keys, odd answers of handlers."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from batching.store.clients import connect
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.e2e.archives import make_archive, make_scripted
from tests.e2e.ferry_process import FerryProcess, FerryServer
from tests.e2e.refusals import assert_error
from tests.ports import free_ports
from tests.redis_users import PASSWORD, USERS, add_user
from tests.support import command_lines, eventually

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


@pytest.mark.slow
def test_b12_server_listens_on_loopback_only(server: FerryServer) -> None:
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
def odd(server: FerryServer) -> Iterator[str]:
    archive = make_archive(server.store, "odd", {"handler.py": ODD_ANSWERS})
    with server.model(archive, "odd") as name:
        yield name


@pytest.mark.slow
def test_b16_odd_answers_of_a_handler_are_errors_with_a_reason_and_kill_no_worker(
    server: FerryServer, odd: str
) -> None:
    # Given
    pids = server.worker_pids(odd)
    expected = {
        "object": 503,
        "itself": 503,
        "few": 503,
        "many": 503,
        "scalar": 503,
        "key": 503,
        "surrogate": 503,
        "generator": 503,
        "set": 503,
        "large": 500,
        "nan": 200,  # json.dumps writes NaN, as TorchServe's worker does
        "bytes": 200,
    }

    # When
    answers = {name: server.predict(odd, name.encode()) for name in expected}

    # Then
    assert {name: answer.status_code for name, answer in answers.items()} == expected
    for name, status in expected.items():
        if status != 200:
            answer = answers[name]
            message = answer.json()["message"]
            assert message
            assert_error(status, answer.content, (status, "InternalServerException", message))
            assert answer.headers["x-ferry-reason"]
    assert server.worker_pids(odd) == pids


TIMES = ("responseTimeout", "startupTimeout", "maxRetryTimeoutInSec")


@pytest.mark.slow
def test_b09_times_of_an_archive_are_served_or_refused_and_never_half(server: FerryServer) -> None:
    # Given the largest times that are allowed, and one that is larger
    files = {"handler.py": ODD_ANSWERS}
    config = "".join(f"{name}: {2**31 - 1}\n" for name in TIMES)
    patient = make_archive(server.store, "patient", files, config=config)
    endless = make_archive(server.store, "endless", files, config=f"startupTimeout: {10**400}")

    # When / Then
    with server.model(patient, "patient"):
        answer = server.predict("patient", b"bytes")
        assert (answer.status_code, answer.text) == (200, "fine")
    refused = server.manage("POST", "models", url=endless, initial_workers=1)
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("startupTimeout must be")
    assert server.manage("GET", "models/endless").status_code == 404


@pytest.mark.slow
def test_b11_server_with_tokens_serves_who_has_the_key(tmp_path: Path) -> None:
    # Given
    path = tmp_path / "keys.json"
    server = FerryServer(tmp_path, "--key-file", str(path))
    server.wait_started()
    try:
        archive, _ = make_scripted(server.store, "guarded")
        keys = {scope: entry["key"] for scope, entry in json.loads(path.read_text()).items()}

        # When / Then no client gets in without
        assert server.manage("GET", "models").status_code == 400
        assert server.predict("guarded").json()["type"] == "InvalidKeyException"

        # When / Then
        server.http.headers["Authorization"] = f"Bearer {keys['management']}"
        server.register(archive)
        headers = {"Authorization": f"Bearer {keys['inference']}"}
        assert server.predict("guarded", b"x", headers=headers).content == b"x"
        assert requests.get(f"{server.metrics}/metrics", timeout=10).status_code == 200

        # Then no process tells a key on its command line, and the log has none either
        words = "".join(server.process.family()) + server.process.log_path.read_text()
        assert not any(key in words for key in keys.values())
        server.process.stop_cleanly()
    finally:
        server.process.kill()


@pytest.fixture
def guarded_redis() -> Iterator[EmbeddedRedis]:
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


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_redis_users_are_enough_for_a_whole_day_of_work(
    guarded_redis: EmbeddedRedis, tmp_path: Path
) -> None:
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
