"""Models that are registered anew, scaled and unregistered while parts fail or are busy."""

import hashlib
import os
import signal
import time
from dataclasses import replace

import pytest

from batching.models.spec import VersionKey
from batching.store.registry.registry import Registry
from tests.chaos.crowd import Crowd, Sent
from tests.chaos.rig import Rig, Served
from tests.e2e.archives import make_archive
from tests.support import came_true, eventually
from tests.timing import assert_within

SAYS_NEW = """
def handle(data, context):
    return None if data is None else ["new"] * len(data)
"""

REFUSED_S = 5.0  # after a node's death: missed after three seconds, and a second to look again

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def test_node_that_missed_a_new_registration_serves_it_all_the_same(rig, crowd):
    with rig.serve("renewed") as model:
        # Given a worker, and a node that hears nothing for a moment
        [pid] = model.pids()
        os.kill(rig.nodes[0].pid, signal.SIGSTOP)

        # When another archive takes over the name and version meanwhile
        files = {"handler.py": SAYS_NEW}
        archive = make_archive(rig.store, "renewed", files, config="jobQueueSize: 1000\n")
        content = (rig.store / archive).read_bytes()
        registry = Registry(rig.redis)
        spec = registry.resolve("renewed", None)
        registry.remove(spec.key)
        registry.create(replace(spec, archive_sha256=hashlib.sha256(content).hexdigest()))
        os.kill(rig.nodes[0].pid, signal.SIGCONT)

        # Then it is what is served from then on
        eventually(lambda: model.pids() not in ([], [pid]), 10)
        assert [one.answer for one in crowd.ask("renewed", ["hello"])] == ["new"]

        # And scaling replaces no worker
        [pid] = model.pids()
        rig.manage("PUT", "models/renewed", min_worker=2, synchronous="true")
        assert pid in model.pids()


def test_request_waits_for_the_next_worker_when_its_version_is_scaled_to_none_and_back(rig, crowd):
    with rig.serve("witness") as witness, rig.serve("bounced") as model:
        # Given a busy worker, which the node has told to leave
        busy = crowd.send("bounced", ["hold stop|busy"])
        model.wait_calls(1)
        for name in ("bounced", "witness"):
            rig.manage("PUT", f"models/{name}", min_worker=0)
        eventually(lambda: witness.pids() == [], 5)

        # When it is wanted again, and requests come
        rig.manage("PUT", "models/bounced", min_worker=1)
        waiting = crowd.send("bounced", ["one", "two"])
        eventually(lambda: model.waiting() == 2, 5)
        model.let_go()
        crowd.wait()

        # Then its successor answers them
        assert [one.status for one in busy + waiting] == [200] * 3
        model.check(crowd)


def unregister(rig: Rig, name: str) -> None:
    Registry(rig.redis).remove(VersionKey(name, "1.0"))


def test_unregistered_version_keeps_no_client_waiting_when_a_node_dies(rig, crowd):
    rig.add_node()
    with rig.serve("orphan") as model:
        # Given a worker of each of two nodes at its last batch, and requests behind them
        model.wait_staffed(2)
        busy, waiting = occupy(model, crowd, 2)
        victim = model.node_of(model.calls()[0].pid)

        # When the version is unregistered and one node is killed
        unregister(rig, "orphan")
        rig.remove_node(victim)
        killed_at = time.monotonic()
        model.let_go()
        crowd.wait()

        # Then all but what the other node finished is refused, as soon as the dead one is missed
        assert sorted(one.status for one in busy) == [200, 404]
        assert {one.status for one in waiting} == {404}
        assert_within(max(one.answered_at for one in crowd.log) - killed_at, REFUSED_S)
        nothing_stays(rig, "orphan")


def test_unregistered_version_keeps_no_client_waiting_when_the_last_node_dies(rig, crowd):
    with rig.serve("alone") as model:
        # Given the only worker at its last batch, and a request behind it
        busy, waiting = occupy(model, crowd)

        # When the version is unregistered, and the only node that knew of it is gone
        unregister(rig, "alone")
        rig.remove_node(rig.nodes[0])
        killed_at = time.monotonic()
        crowd.wait()

        # Then it is told as soon as the dead one is missed
        assert [one.status for one in busy + waiting] == [404, 404]
        assert_within(max(one.answered_at for one in crowd.log) - killed_at, REFUSED_S)
        model.check(crowd)


def test_node_that_is_stopped_refuses_what_waits_for_an_unregistered_version(rig, crowd):
    with rig.serve("last") as model:
        busy, waiting = occupy(model, crowd)
        unregister(rig, "last")
        # When the only node is stopped, while its worker is at the batch
        node = rig.nodes[0]
        stopped = node.stop_by(lambda: (os.kill(node.pid, signal.SIGTERM), model.let_go()))
        crowd.wait()
        # Then no client is left to wait
        assert stopped.exit_code == 0
        assert [one.status for one in busy + waiting] == [200, 404]
        nothing_stays(rig, "last")


def test_model_whose_record_cannot_be_read_is_unregistered_and_keeps_no_client_waiting(rig, crowd):
    with rig.serve("spoilt") as model:
        # Given a record that the node finds unreadable
        busy, waiting = occupy(model, crowd)
        rig.redis.hset("{ferry}:models", "spoilt", b"hello")
        Registry(rig.redis).announce("another")
        rig.nodes[0].wait_for_line("unreadable record model=spoilt")
        # When
        model.let_go()
        answer = rig.manage("DELETE", "models/spoilt")
        crowd.wait()
        # Then
        assert answer.status_code == 200, answer.text
        assert [one.status for one in busy + waiting] == [200, 404]
        # Of what was not readable, only the version's own settings may stay.
        nothing_stays(rig, "spoilt", but=b":config")
    with rig.serve("spoilt"):
        assert [one.status for one in crowd.ask("spoilt", ["again"])] == [200]


def occupy(model: Served, crowd: Crowd, workers: int = 1) -> tuple[list[Sent], list[Sent]]:
    """Has so many workers be at a batch, and as many requests wait behind them."""
    busy = crowd.send(model.name, [f"hold stop|{number}" for number in range(workers)])
    model.wait_calls(workers)
    waiting = crowd.send(model.name, [f"waits {number}" for number in range(workers)])
    eventually(lambda: model.waiting() == workers, 5)
    return busy, waiting


def nothing_stays(rig: Rig, model_name: str, but: bytes = b"nothing") -> None:
    """Asserts that soon no key of the model would stay for ever."""

    def permanent() -> list[bytes]:
        names = rig.redis.scan_iter(f"{{model2:{model_name}:*")
        return [it for it in names if rig.redis.ttl(it) == -1 and not it.endswith(but)]

    assert came_true(lambda: permanent() == [], 5), permanent()
