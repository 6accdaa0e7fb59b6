"""Tests the wait for the workers of a version, on one node and on several."""

import pytest

from batching.errors import Draining, InternalError
from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from ingress.models.registrar import WorkerProgress, WorkerWait
from ingress.services import TimeLimits
from tests.support import KEY, make_spec

READY, LOADING, STARTING = WorkerState.READY, WorkerState.LOADING, WorkerState.STARTING


class Nodes:
    """Live nodes, each with one worker in a state that the test gives."""

    def __init__(self, harness):
        self.harness = harness
        self.registry = harness.registry()
        self.spec = make_spec(min_worker=1, max_worker=1, startup_timeout_s=30)
        self.registry.create(self.spec)

    def have(self, node_id, state=None, **told):
        self.harness.join(NodeStatus(node_id, "host", 1, "now"))
        if state is not None:
            status = WorkerStatus(f"{node_id}-1", node_id, 0, state, 42, "cpu", "now", **told)
            self.harness.node().report(KEY, status)

    def wait(self, should_stop=lambda: False):
        options = {"failures_before": {}, "version_text": "1.0", "install_patience_s": 0.0}
        wait = WorkerWait(self.registry, should_stop=should_stop, patience=TimeLimits())
        return wait.for_workers(self.spec, **options)


@pytest.fixture
def nodes(real_harness):
    return Nodes(real_harness)


FAILED = {"failures": 1, "error": "OSError: no space"}


def test_node_that_cannot_start_its_worker_keeps_nothing_from_the_others(nodes, caplog):
    # Given
    nodes.have("a", READY)
    nodes.have("b", STARTING, **FAILED)
    nodes.have("c", READY)
    # When / Then
    assert nodes.wait() is WorkerProgress.PARTIAL
    assert "not started model=digits version=1.0: OSError: no space" in caplog.text


def test_causes_of_a_failure_are_told_once_each_and_tracebacks_first(nodes):
    # Given
    nodes.have("a", STARTING, **FAILED, traceback="Traceback\nOSError: no space")
    nodes.have("b", STARTING, **FAILED, traceback="Traceback\nOSError: no space")
    nodes.have("c", STARTING, failures=1, error="did not load within startup_timeout of 2 s")
    # When
    with pytest.raises(InternalError) as caught:
        nodes.wait()
    # Then
    assert "\n" not in caught.value.message
    assert caught.value.operators_text == (
        "Traceback\nOSError: no space\n\ndid not load within startup_timeout of 2 s"
    )


@pytest.mark.parametrize("state", [LOADING, None])
def test_workers_of_other_nodes_are_waited_for_when_those_of_one_have_failed(nodes, state):
    # Given
    nodes.have("a", STARTING, **FAILED)
    nodes.have("b", state)
    # When this server is stopped: so it waits
    with pytest.raises(Draining):
        nodes.wait(lambda: True)
    # And when the other one has failed, too
    nodes.have("b", STARTING, **FAILED)
    # Then
    with pytest.raises(InternalError, match="Failed to start workers"):
        nodes.wait()


def test_worker_that_was_given_up_and_is_to_go_has_not_failed_to_start(nodes):
    # Given a version that is scaled to nothing as its worker was given up
    nodes.have("a", WorkerState.FAILED, **FAILED)
    nodes.registry.scale(KEY, 0, 0)
    # When this server is stopped: so it waits for the worker to go
    with pytest.raises(Draining):
        nodes.wait(lambda: True)
    # And once it has gone
    nodes.harness.node().forget(KEY, "a-1")
    # Then
    assert nodes.wait() is WorkerProgress.DONE
