from dataclasses import replace

import pytest

from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from batching.store import keys
from tests.support import KEY, make_spec

NODE = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
WORKER = WorkerStatus("worker-1", "node-a", 0, WorkerState.READY, 43, "cpu", "now")


def test_beat_tells_whether_the_node_was_unknown(desk):
    # When
    answers = [desk.node().beat({}, "node-a"), desk.node().beat({}, "node-a")]
    desk.client.flushall()
    answers.append(desk.node().beat({}, "node-a"))

    # Then
    assert [heard.is_new_node for heard in answers] == [True, False, True]


def test_node_beats_when_memory_is_full(real_desk, full_memory):
    # Given
    real_desk.join(NODE)
    real_desk.client.zincrby(keys.NODES, -10_000, "node-a")
    full_memory()

    # When
    heard = real_desk.node().beat({}, "node-a")

    # Then
    assert not heard.is_new_node
    assert real_desk.node().dead_nodes() == []


def test_node_joins_when_memory_is_full(real_desk, full_memory):
    # Given
    full_memory()

    # When
    real_desk.join(NODE)

    # Then
    assert real_desk.registry().nodes() == [NODE]


def test_described_node_is_seen_while_it_beats(desk):
    # When
    desk.join(NODE)

    # Then
    assert desk.registry().nodes() == [NODE]


def test_leave_makes_the_node_unknown(desk):
    # Given
    desk.join(NODE)

    # When
    desk.node().leave("node-a")

    # Then
    assert desk.registry().nodes() == []
    assert not desk.client.exists(keys.NODE_INFO)


def test_silent_node_is_dead_until_it_is_forgotten(desk):
    # Given
    desk.join(NODE)
    desk.client.zincrby(keys.NODES, -10_000, "node-a")

    # When
    dead = desk.node().dead_nodes()
    first, second = (desk.node().forget_nodes(dead) for _ in range(2))

    # Then
    assert dead == ["node-a"]
    assert [(gone.node_id, gone.hostname) for gone in first] == [("node-a", NODE.hostname)]
    assert 10 <= first[0].silent_s < 15
    assert second == []
    assert desk.node().dead_nodes() == []
    assert not desk.client.exists(keys.NODE_INFO)


def test_report_shows_the_workers_latest_state(desk):
    # Given
    desk.join(NODE)
    desk.node().report(KEY, WORKER)
    failed = WorkerStatus("worker-1", "node-a", 0, WorkerState.FAILED, 0, "cpu", "now", failures=3)

    # When
    desk.node().report(KEY, failed)

    # Then
    assert desk.registry().workers(KEY) == [failed]


def test_forget_takes_the_worker_off_every_list(desk):
    # Given
    desk.join(NODE)
    desk.node().report(KEY, WORKER)
    desk.node().beat({KEY: ["worker-1"]})

    # When
    desk.node().forget(KEY, "worker-1")

    # Then
    assert desk.registry().workers(KEY) == []
    assert desk.client.zscore(desk.keys.worker_beats, "worker-1") is None


def test_hidden_worker_is_still_seen_and_does_not_count(desk):
    # Given
    desk.join(NODE)
    desk.node().report(KEY, WORKER)

    # When
    desk.node().hide(KEY, "worker-a")
    desk.node().hide(KEY, "worker-1")

    # Then
    assert desk.registry().workers(KEY) == [WORKER]
    assert desk.submit("a")[0].name == "NO_WORKER"


def test_workers_of_a_dead_node_are_forgotten_although_they_were_hidden(desk):
    # Given
    desk.registry().create(make_spec())
    for node_id in ("node-a", "node-b"):
        worker_id = f"{node_id}-1"
        desk.node().report(KEY, replace(WORKER, worker_id=worker_id, node_id=node_id))
        desk.node().hide(KEY, worker_id)

    # When
    desk.node().forget_nodes(["node-a"])

    # Then
    assert desk.client.hkeys(desk.keys.workers) == [b"node-b-1"]


def test_version_is_staffed_until_the_nodes_of_its_hidden_workers_are_gone(desk):
    # Given
    desk.join(NODE)
    desk.node().report(KEY, replace(WORKER, worker_id="node-a-1"))
    assert desk.node().is_staffed(KEY)
    for worker_id in ("worker-a", "node-a-1"):
        desk.node().hide(KEY, worker_id)
    before = desk.node().is_staffed(KEY)

    # When its node is found dead, and the version is not registered any more
    desk.node().forget_nodes(["node-a"])

    # Then nothing of it stays
    assert (before, desk.node().is_staffed(KEY)) == (True, False)
    desk.node().bury(KEY)
    assert not desk.client.exists(desk.keys.workers)


@pytest.mark.parametrize("verb", ["forget", "hide"])
def test_forgetting_an_unknown_worker_is_harmless(desk, verb):
    # When
    getattr(desk.node(), verb)(KEY, "never-seen")

    # Then
    assert desk.submit("a")[0].name == "QUEUED"
