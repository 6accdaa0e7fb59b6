"""Large bodies by memory that ingress and workers share, and by Redis wherever that is not so."""

import gzip
import hashlib
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
import tritonclient.http as triton

from benchmarks.networks import photo
from tests.chaos.arena_rig import (
    LARGEST_BYTES,
    MOST,
    memory_folder,
    open_arena_rig,
)
from tests.e2e.archives import make_archive, make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer, running
from tests.e2e.metrics_text import Scrape
from tests.support import eventually

BODY_BYTES = 100_000
LOOK_S = 0.75  # between two audits of an ingress, and more
DOUBLING = Path(__file__).with_name("doubling_handler.py").read_text()
DIGESTS = """
import hashlib

def handle(data, context):
    if data is None:
        return None
    return [{name: digest(content) for name, content in row.items()} for row in data]

def digest(content):
    return hashlib.sha256(content).hexdigest()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def whole_rig(tmp_path_factory):
    with open_arena_rig(tmp_path_factory.mktemp("arena")) as rig:
        yield rig


@pytest.fixture
def rig(whole_rig):
    """Redis, an ingress with a small arena, and a node that shares it."""
    yield whole_rig
    whole_rig.restore()
    whole_rig.unregister_all()


def body_of(number, command=""):
    return f"{command}{number}".encode().ljust(BODY_BYTES, b".")


def asked_for_a_while(server, model):
    """Asks for longer than an ingress needs to look again who works; returns the bodies."""
    ends_s = time.monotonic() + 2 * LOOK_S
    bodies = []
    while time.monotonic() < ends_s:
        bodies.append(body_of(len(bodies)))
        assert server.predict(model, bodies[-1]).content == bodies[-1]
    return bodies


def test_worker_elsewhere_has_the_bodies_sent_by_redis_once(rig):
    with (
        rig.serve("bounced") as model,
        Clients(rig.inference, 4) as early,
        ThreadPoolExecutor(1) as pool,
        memory_folder() as other_memory,
    ):
        # Given bodies in the arena, for which the only worker has no time
        rig.wait_for_arena("bounced")
        busy = pool.submit(rig.predict, "bounced", b"hold|busy")
        [here] = rig.worker_pids("bounced")
        eventually(lambda: model.ledger.executions("hold|busy"), 10)
        before, accepted = rig.carried(), model.counters()["accepted"]
        bodies = [body_of(number, "hold|") for number in range(4)]
        early.send("/predictions/bounced", bodies)
        eventually(lambda: rig.carried()["arena"] == before["arena"] + 4, 10)

        # When a worker of another host comes and claims them
        node = rig.add_node("--shared-memory-dir", str(other_memory))
        eventually(lambda: model.bodies()[-1] != "hold|busy", 20)

        # Then each was given back once, and no attempt was counted
        counters = model.counters()
        assert counters["accepted"] == accepted + 8
        attempts = [int(record.split()[0]) for record in rig.redis.hvals(model.keys.open)]
        assert attempts == [0] * 5
        assert counters.get("reclaimed", 0) == 0
        # And runs once, there, and its client has its own answer
        model.let_go()
        answers = early.receive(4)
        assert [(answer.status, answer.body) for answer in answers] == [
            (200, one) for one in bodies
        ]
        assert busy.result().content == b"hold|busy"
        runs = [
            call for call in model.calls() if call.bodies[0][:6] in {f"hold|{n}" for n in range(4)}
        ]
        assert sorted(call.bodies[0][5] for call in runs) == ["0", "1", "2", "3"]
        assert here not in {call.pid for call in runs[:1]}
        assert rig.carried() == {"arena": before["arena"] + 4, "redis": before["redis"] + 4}

        # And while that worker is there, no body is put where it cannot read it
        count = len(asked_for_a_while(rig, "bounced"))
        assert rig.carried() == {"arena": before["arena"] + 4, "redis": before["redis"] + 4 + count}
        assert model.counters()["accepted"] == accepted + 8 + count

        # When it has left
        assert node.stop(signal.SIGTERM).exit_code == 0
        rig.nodes.remove(node)
        # Then
        rig.wait_for_arena("bounced")


def test_worker_that_does_not_say_what_it_shares_has_bodies_sent_by_redis(rig):
    with rig.serve("unmarked") as model:
        # Given
        rig.wait_for_arena("unmarked")
        # When an older worker comes, whose id has no mark
        rig.add_node("--shared-memory-bytes", "0")
        model.wait_staffed(2)
        # Then
        eventually(lambda: rig.way_of("unmarked", body_of("")) == "redis", 10)
        before = rig.carried()
        count = len(asked_for_a_while(rig, "unmarked"))
        assert rig.carried() == {**before, "redis": before["redis"] + count}


def test_bodies_for_which_the_arena_has_no_room_go_by_redis(rig):
    with rig.serve("full") as model, Clients(rig.inference, MOST + 3) as clients:
        # Given
        rig.wait_for_arena("full")
        before = rig.carried()
        # When all of it is taken, and more come; one is too large for any share
        bodies = [f"hold|{number}".encode().ljust(LARGEST_BYTES) for number in range(MOST + 2)]
        bodies.append(b"hold|large".ljust(LARGEST_BYTES + 1))
        clients.send("/predictions/full", bodies)
        eventually(lambda: model.open_requests() == MOST + 3, 10)
        # Then
        assert rig.carried() == {"arena": before["arena"] + MOST, "redis": before["redis"] + 3}
        model.let_go()
        answers = clients.receive(MOST + 3)
        assert [(answer.status, answer.body) for answer in answers] == [
            (200, one) for one in bodies
        ]


def test_answers_that_were_read_make_room_for_others(rig):
    with rig.serve("answers"):
        # Given
        rig.wait_for_arena("answers")
        before = rig.carried("answer")
        # When there are more answers than the worker's memory has room for, one after the other
        for number in range(4 * MOST):
            body = f"{number}".encode().ljust(LARGEST_BYTES)
            assert rig.predict("answers", body).content == body
        # Then only one that finds no room goes by Redis, and then there is some
        ways = {way: count - before[way] for way, count in rig.carried("answer").items()}
        assert ways["arena"] > 3 * MOST, ways


def test_clients_that_leave_in_the_middle_leave_no_slot_taken(rig):
    head = f"POST /predictions/left HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGEST_BYTES}\r\n\r\n"
    with rig.serve("left"):
        # When clients leave before their bodies are whole
        for _ in range(MOST):
            with socket.create_connection(("127.0.0.1", rig.port), timeout=10) as one:
                one.sendall(head.encode() + bytes(LARGEST_BYTES // 2))
    # Then
    assert rig.ways_of_a_whole_arena() == {"arena": MOST, "redis": 0}


def test_job_is_in_redis_and_outlives_the_ingress(rig):
    with rig.serve("worked") as model:
        # Given
        rig.wait_for_arena("worked")
        before = rig.carried()
        body = body_of("job ", "hold|")
        answer = rig.predict("worked", body, headers={"Prefer": "respond-async"})
        assert answer.status_code == 202, answer.text
        eventually(lambda: model.ledger.executions("hold|job") or model.calls(), 10)
        waiting = rig.predict("worked", body_of("later"), headers={"Prefer": "respond-async"})
        assert rig.carried()["arena"] == before["arena"]
        # When
        rig.restart_ingress()
        model.let_go()
        # Then
        for job, expected in ((answer, body), (waiting, body_of("later"))):
            url = job.json()["result_url"]
            eventually(lambda url=url: requests.get(url, timeout=10).status_code == 200, 20)
            assert requests.get(url, timeout=10).content == expected


def test_what_a_dead_ingress_left_goes_with_the_next_start_and_with_the_node(rig):
    # Given
    with rig.serve("left"):
        rig.wait_for_arena("left")
    # Without the memory of workers.
    eventually(lambda: len(rig.files()) == 1, 10)
    [file] = rig.files()
    # When
    os.kill(rig.process.pid, signal.SIGKILL)
    eventually(rig.process.has_ended, 10)
    # Then
    assert rig.files() == [file]
    rig.restart_ingress()
    [other] = rig.files()
    assert other != file
    # When
    rig.process.kill()
    assert rig.files() == [other]
    assert rig.nodes[0].stop(signal.SIGTERM).exit_code == 0
    # Then
    assert rig.files() == []


def test_ingress_that_is_stopped_leaves_nothing(rig):
    eventually(lambda: len(rig.files()) == 1, 10)
    assert rig.process.stop(signal.SIGTERM).exit_code == 0
    assert rig.files() == []


def test_forms_and_tensors_and_what_is_refused_are_as_before(rig):
    parts = {"image": photo(1), "mask": os.urandom(40_000), "note": b"small"}
    digests = make_archive(rig.store, "digests", {"handler.py": DIGESTS})
    doubling = make_archive(rig.store, "doubling", {"handler.py": DOUBLING})
    with rig.model(digests, "digests"), rig.model(doubling, "doubling"):
        for turn in ("redis", "arena"):
            if turn == "arena":
                rig.wait_for_arena("digests")
                rig.wait_for_arena("doubling")
            before = rig.carried()
            # When
            answer = rig.predict("digests", files=parts)
            # Then
            assert answer.json() == {
                name: hashlib.sha256(content).hexdigest() for name, content in parts.items()
            }
            # When
            values = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
            tensor = triton.InferInput("x", list(values.shape), "FP32")
            tensor.set_data_from_numpy(values)
            with triton.InferenceServerClient(f"127.0.0.1:{rig.port}") as client:
                result = client.infer("doubling", [tensor])
            # Then
            assert np.array_equal(result.as_numpy("output"), values * 2)
            # And those that are no requests count nowhere
            packed = gzip.compress(os.urandom(BODY_BYTES))
            refused = rig.predict("digests", packed, headers={"Content-Encoding": "gzip"})
            assert refused.status_code == 415
            assert rig.predict("unknown", packed).status_code == 404
            assert rig.carried() == {**before, turn: before[turn] + 2}


@pytest.mark.parametrize("folder", ["missing", "not writable"])
def test_server_without_a_folder_for_it_works_and_says_so(tmp_path, folder):
    # Given
    memory = {"missing": tmp_path / "none", "not writable": Path("/proc")}[folder]
    (tmp_path / "store").mkdir()
    config = "minWorkers: 1\nmaxWorkers: 1\n"
    archive, _ = make_scripted(tmp_path / "store", "echo", config=config)
    server = FerryServer(tmp_path, "--models", archive, "--shared-memory-dir", str(memory))
    with running(server):
        # When
        count = len(asked_for_a_while(server, "echo"))
        # Then
        scrape = Scrape(server)
        assert scrape.value("ferry_request_bodies_total", way="redis") == count
        assert scrape.value("ferry_request_bodies_total", way="arena") == 0
        assert re.search(f"WARNING .*no memory is shared.* folder={memory}", server.process.log())
