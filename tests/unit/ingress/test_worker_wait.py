"""How far the workers of a version have come, on one node and on several."""

import pytest

from batching.status import WorkerState, WorkerStatus
from ingress.worker_wait import Progress, _is_preparing, _progress
from tests.support import make_spec

READY, LOADING, STARTING = WorkerState.READY, WorkerState.LOADING, WorkerState.STARTING


def workers(*states, pid=42):
    return [
        WorkerStatus(f"w{number}", "node-a", number, state, pid, "cpu", "now")
        for number, state in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("states", "nodes", "expected"),
    [
        ([READY], 1, Progress.DONE),
        ([READY], 2, Progress.PARTIAL),
        ([READY, READY], 2, Progress.DONE),
        ([READY, LOADING], 2, Progress.PARTIAL),
        ([LOADING], 1, Progress.NONE),
        ([], 1, Progress.NONE),
        ([READY] * 3, 1, Progress.PARTIAL),  # one too many, which has yet to go
        ([READY] * 3, 2, Progress.DONE),
    ],
)
def test_workers_are_counted_for_each_node(states, nodes, expected):
    spec = make_spec(min_worker=1, max_worker=2)
    assert _progress(workers(*states), spec, nodes=nodes) is expected


@pytest.mark.parametrize(
    ("state", "pid", "expected"), [(STARTING, 0, True), (STARTING, 42, False), (LOADING, 0, False)]
)
def test_archive_is_unpacked_before_a_process_is_started(state, pid, expected):
    assert _is_preparing(workers(READY) + workers(state, pid=pid)) is expected
