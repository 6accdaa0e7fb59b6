"""F44 and F45: handlers that fork, and handlers that abuse the process they run in."""

import contextlib
from pathlib import Path

import psutil
import pytest

from tests.chaos.crowd import Crowd
from tests.e2e.archives import HANDLER
from tests.e2e.clients import TIME_TO_FILL_MS
from tests.support import eventually

FILES = {
    "handler.py": Path(__file__).with_name("abusive_handler.py").read_text(encoding="utf-8"),
    "scripted_handler.py": HANDLER.read_text(encoding="utf-8"),
}
BATCH_SIZE = 3
TOLD = "a process that the handler forked came back"

# How the child ends -> the status that the handler's `waitpid` sees.
ENDS = {"return": 0, "raise": 1, "exit": 7, "native": 0}
OK, FAILED, CRASHED = (200, ""), (503, "prediction_failed"), (500, "worker_crashed")
ABUSES = {
    "fork-thread": OK,
    "fork-process": OK,
    "_exit": CRASHED,
    "interrupt": CRASHED,
    "base": CRASHED,
    "print": OK,
    "close-output": OK,
    "close-all": OK,
    "threads": OK,
    "recurse": FAILED,
    "homeless": OK,
    "none": FAILED,
    "short": FAILED,
    "lazy": FAILED,
    "object": FAILED,
    "deep": FAILED,
    "surrogate": FAILED,
    "generator": FAILED,
    "deaf": OK,
}

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@pytest.fixture(scope="module")
def people(whole_rig):
    with Crowd(whole_rig.port) as people:
        yield people


@pytest.fixture(scope="module")
def abused(whole_rig):
    """One worker for all of these tests, and its successors."""
    options = {"batch_size": BATCH_SIZE, "max_batch_delay": TIME_TO_FILL_MS}
    # A handler that waits for a child that never ends must not hold the tests up for long.
    with whole_rig.serve("abused", files=FILES, response_timeout=15, **options) as model:
        yield model


def family_of(pid: int) -> list[psutil.Process]:
    """Returns the process and those that it has started, as far as they live."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return [one for one in family if one.status() != psutil.STATUS_ZOMBIE]
    return []


@pytest.mark.parametrize("end", ENDS)
def test_f44_fork_that_comes_back_from_a_call_ends(whole_rig, abused, people, record_promise, end):
    [pid] = abused.pids()

    # When a handler's child comes back as if it were the worker
    sent = people.ask("abused", [f"fork {end}|", f"{end} neighbour", f"{end} other"])

    # Then the worker's answer stands, and the child was gone before
    assert [one.answer for one in sent] == [f"{one.body} {ENDS[end]}" for one in sent]
    assert [one.pid for one in family_of(pid)] == [pid]

    # And no other process answers
    before = len(abused.calls())
    later = people.ask("abused", [f"{end} later {number}" for number in range(12)])
    assert [one.answer for one in later] == [one.body for one in later]
    others = {call.pid for call in abused.calls()[before:]} - {pid}
    record_promise("F44", f"{len(others)} others after {end}")
    assert others == set()
    abused.check(people)

    # And the log tells it once, however often it happens
    lines = whole_rig.nodes[0].log_path.read_text(errors="replace").splitlines()
    assert sum(TOLD in line and "model=abused" in line for line in lines) == 1


def test_f44_fork_that_comes_back_from_loading_ends(whole_rig):
    files = {**FILES, "forks_at_load": ""}
    with whole_rig.serve("forked", files=files) as model, Crowd(whole_rig.port) as people:
        # Given a handler that forked while it was loaded
        [pid] = model.pids()
        eventually(lambda: len(family_of(pid)) == 1)
        # When / Then
        sent = people.ask("forked", [f"forked {number}" for number in range(6)])
        assert [one.answer for one in sent] == [one.body for one in sent]
        assert {call.pid for call in model.calls()} == {pid}


@pytest.mark.parametrize("abuse", ABUSES)
def test_f45_abuse_hits_no_other_request(abused, people, abuse):
    # When a request has its handler do this, in a batch with others
    neighbours = [f"{abuse} neighbour", f"{abuse} other"]
    [bad, *good] = people.ask("abused", [f"{abuse}|", *neighbours])

    # Then it alone may fail
    assert (bad.status, bad.reason) == ABUSES[abuse]
    assert [one.status for one in good] == [200, 200]
    assert all(one.answer.startswith(one.body) for one in good)

    # And the next requests are answered, by this worker or its successor
    later = people.ask("abused", [f"{abuse} later {number}" for number in range(BATCH_SIZE)])
    assert [(one.status, one.answer) for one in later] == [(200, one.body) for one in later]
    abused.check(people)

    # Which is one process again
    eventually(lambda: [len(family_of(pid)) for pid in abused.pids()] == [1], 10)
