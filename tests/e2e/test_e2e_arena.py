"""Large bodies by memory that ingress and workers share, and by Redis wherever that is not so."""

import gzip
import hashlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from benchmarks.networks import photo
from tests.chaos.arena_rig import (
    memory_folder,
    open_arena_rig,
)
from tests.e2e.archives import make_archive
from tests.e2e.clients import Clients
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
