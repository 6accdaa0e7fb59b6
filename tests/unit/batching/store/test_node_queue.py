from dataclasses import replace

from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from batching.store import keys
from tests.support import KEY, make_spec

NODE = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
WORKER = WorkerStatus("worker-1", "node-a", 0, WorkerState.READY, 43, "cpu", "now")


def test_node_joins_and_leaves(harness):
    # When
    answers = [harness.node().beat({}, "node-a"), harness.node().beat({}, "node-a")]
    harness.client.flushall()
    answers.append(harness.node().beat({}, "node-a"))

    # Then
    assert [heard.is_new_node for heard in answers] == [True, False, True]
    harness.join(NODE)
    assert harness.registry().nodes() == [NODE]
    harness.node().leave("node-a")
    assert harness.registry().nodes() == []
    assert not harness.client.exists(keys.NODE_INFO)


def test_worker_is_reported_hidden_and_forgotten(harness):
    # Given
    harness.join(NODE)
    node, registry = harness.node(), harness.registry()
    node.report(KEY, WORKER)
    failed = replace(WORKER, state=WorkerState.FAILED, failures=3)

    # When / Then: its latest state is shown
    node.report(KEY, failed)
    assert registry.workers(KEY) == [failed]

    # When hidden it is still seen and does not count
    node.beat({KEY: ["worker-1"]})
    for worker_id in ("worker-a", "worker-1"):
        node.hide(KEY, worker_id)
    assert registry.workers(KEY) == [failed]
    assert harness.submit("a")[0].name == "NO_WORKER"

    # When forgotten it is on no list
    node.beat({KEY: ["worker-1"]})
    node.forget(KEY, "worker-1")
    assert registry.workers(KEY) == []
    assert harness.client.zscore(harness.keys.worker_beats, "worker-1") is None


def test_silent_node_is_dead_until_it_is_forgotten(harness):
    # Given
    harness.join(NODE)
    harness.client.zincrby(keys.NODES, -10_000, "node-a")

    # When
    dead = harness.node().dead_nodes()
    first, second = (harness.node().forget_nodes(dead) for _ in range(2))

    # Then
    assert dead == ["node-a"]
    assert [(gone.node_id, gone.hostname) for gone in first] == [("node-a", NODE.hostname)]
    assert 10 <= first[0].silent_s < 15
    assert second == []
    assert harness.node().dead_nodes() == []
    assert not harness.client.exists(keys.NODE_INFO)


def test_workers_of_a_dead_node_are_forgotten_although_they_were_hidden(harness):
    # Given
    harness.registry().create(make_spec())
    for node_id in ("node-a", "node-b"):
        worker_id = f"{node_id}-1"
        harness.node().report(KEY, replace(WORKER, worker_id=worker_id, node_id=node_id))
        harness.node().hide(KEY, worker_id)

    # When
    harness.node().forget_nodes(["node-a"])

    # Then
    assert harness.client.hkeys(harness.keys.workers) == [b"node-b-1"]


def test_version_is_staffed_until_the_nodes_of_its_hidden_workers_are_gone(harness):
    # Given
    harness.join(NODE)
    harness.node().report(KEY, replace(WORKER, worker_id="node-a-1"))
    assert harness.node().is_staffed(KEY)
    for worker_id in ("worker-a", "node-a-1"):
        harness.node().hide(KEY, worker_id)
    before = harness.node().is_staffed(KEY)

    # When its node is found dead, and the version is not registered any more
    harness.node().forget_nodes(["node-a"])

    # Then nothing of it stays
    assert (before, harness.node().is_staffed(KEY)) == (True, False)
    harness.node().bury(KEY)
    assert not harness.client.exists(harness.keys.workers)
