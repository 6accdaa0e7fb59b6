import pytest

from batching.status import NodeStatus, WorkerState, WorkerStatus
from batching.store import keys
from tests.support import KEY

NODE = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
WORKER = WorkerStatus("worker-1", "node-a", 0, WorkerState.READY, 43, "cpu", "now")


def test_join_makes_the_node_known(desk):
    # When
    desk.node().join(NODE)

    # Then
    assert desk.registry().nodes() == [NODE]


def test_join_tells_whether_the_node_was_unknown(desk):
    # When
    answers = [desk.node().join(NODE), desk.node().join(NODE)]
    desk.client.flushall()
    answers.append(desk.node().join(NODE))

    # Then
    assert answers == [True, False, True]


def test_join_goes_on_when_memory_is_full(real_desk, full_memory):
    # Given
    real_desk.node().join(NODE)
    real_desk.client.zincrby(keys.NODES, -10_000, "node-a")
    full_memory()

    # When
    is_new = real_desk.node().join(NODE)

    # Then
    assert not is_new
    assert real_desk.node().dead_nodes() == []


def test_leave_makes_the_node_unknown(desk):
    # Given
    desk.node().join(NODE)

    # When
    desk.node().leave("node-a")

    # Then
    assert desk.registry().nodes() == []
    assert not desk.client.exists(keys.NODE_INFO)


def test_silent_node_is_dead_until_it_is_forgotten(desk):
    # Given
    desk.node().join(NODE)
    desk.client.zincrby(keys.NODES, -10_000, "node-a")

    # When
    dead = desk.node().dead_nodes()
    desk.node().forget_nodes(dead)

    # Then
    assert dead == ["node-a"]
    assert desk.node().dead_nodes() == []
    assert not desk.client.exists(keys.NODE_INFO)


def test_report_shows_the_workers_latest_state(desk):
    # Given
    desk.node().join(NODE)
    desk.node().report(KEY, WORKER)
    failed = WorkerStatus("worker-1", "node-a", 0, WorkerState.FAILED, 0, "cpu", "now", failures=3)

    # When
    desk.node().report(KEY, failed)

    # Then
    assert desk.registry().workers(KEY) == [failed]


def test_forget_takes_the_worker_off_every_list(desk):
    # Given
    desk.node().join(NODE)
    desk.node().report(KEY, WORKER)
    desk.node().beat({KEY: ["worker-1"]})

    # When
    desk.node().forget(KEY, "worker-1")

    # Then
    assert desk.registry().workers(KEY) == []
    assert desk.client.zscore(desk.keys.worker_beats, "worker-1") is None


def test_hidden_worker_is_still_seen_and_does_not_count(desk):
    # Given
    desk.node().join(NODE)
    desk.node().report(KEY, WORKER)

    # When
    desk.node().hide(KEY, "worker-a")
    desk.node().hide(KEY, "worker-1")

    # Then
    assert desk.registry().workers(KEY) == [WORKER]
    assert desk.submit("a")[0].name == "NO_WORKER"


@pytest.mark.parametrize("verb", ["forget", "hide"])
def test_forgetting_an_unknown_worker_is_harmless(desk, verb):
    # When
    getattr(desk.node(), verb)(KEY, "never-seen")

    # Then
    assert desk.submit("a")[0].name == "QUEUED"
