"""F1 to F14: workers and nodes that die, hang, freeze or never start."""

import itertools
import os
import signal
import time
from collections import Counter

import pytest

from tests.chaos.checker import DEADLINE_SLACK_S
from tests.chaos.promises import is_long
from tests.chaos.rig import kill
from tests.e2e.clients import TIME_TO_FILL_MS
from tests.support import eventually
from tests.timing import assert_within

RECLAIM_S = 0.3
NODE_RECLAIM_S = 4.0
DEAD_AFTER_S = 3.0
STILL_S = 2.0  # until the next one has loaded

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def test_f01_killed_child_costs_its_batch_only_time(rig, crowd, record_promise):
    with rig.serve("f01", batch_size=8, max_batch_delay=TIME_TO_FILL_MS, workers=2) as model:
        # Given a batch of eight that a worker is at
        sent = crowd.send("f01", ["hold|0", *(str(number) for number in range(1, 8))])
        [call] = model.wait_calls(1)
        assert len(call.bodies) == 8

        # When that worker is killed
        kill(call.pid)
        killed_at = time.monotonic()
        model.let_go()
        crowd.wait()

        # Then everything runs again at once, alone and elsewhere, and is answered
        again_s = model.calls()[1].started_at - killed_at
        slowest_s = max(one.seconds for one in sent)
        record_promise("F1 again", f"{again_s:.3f} s")
        record_promise(
            "F1 answers", f"{slowest_s:.2f} s, {sum(one.status == 200 for one in sent)} x 200"
        )
        assert [one.status for one in sent] == [200] * 8
        assert_within(again_s, RECLAIM_S)
        assert_within(slowest_s, 1.5)
        assert {len(other.bodies) for other in model.calls()[1:]} == {1}
        model.check(crowd)


def test_f02_killed_node_costs_its_batch_only_time(rig, crowd, record_promise):
    rig.add_node()
    with rig.serve("f02", batch_size=8, max_batch_delay=TIME_TO_FILL_MS) as model:
        # Given a batch of eight on one of two nodes
        model.wait_staffed(2)
        sent = crowd.send("f02", ["hold|0", *(str(number) for number in range(1, 8))])
        [call] = model.wait_calls(1)

        # When the node and its worker are killed
        victim = model.node_of(call.pid)
        rig.remove_node(victim)
        killed_at = time.monotonic()
        model.let_go()
        crowd.wait()

        # Then the other one runs everything again
        again_s = model.calls()[1].started_at - killed_at
        record_promise("F2", f"{again_s:.2f} s")
        assert [one.status for one in sent] == [200] * 8
        assert_within(again_s, NODE_RECLAIM_S)
        model.check(crowd)


@pytest.mark.parametrize("case", [("F4", 32, 1), ("F5", 16, 2)], ids=["f04", "f05"])
def test_f04_f05_poison_fails_alone(rig, crowd, record_promise, case):
    row, size, poisons = case
    options = {"batch_size": size, "max_batch_delay": TIME_TO_FILL_MS, "workers": 2}
    with rig.serve(row.lower(), **options) as model:
        # When requests that crash their worker are in one batch with good ones
        good = [f"good {number}" for number in range(size - poisons)]
        bad = [f"segfault|{number}" for number in range(poisons)]
        sent = crowd.ask(row.lower(), good[:3] + bad + good[3:])

        # Then each poison is answered for itself, after its second crash, and no other is hit
        statuses = {one.body: one.status for one in sent}
        crashes = max(model.bodies().count(body) for body in bad)
        ok = sum(statuses[body] == 200 for body in good)
        failed = sum(statuses[body] == 500 for body in bad)
        record_promise(row, f"{ok} x 200, {failed} x 500, {crashes} runs")
        assert len(model.calls()[0].bodies) == size
        assert [statuses[body] for body in good] == [200] * len(good)
        assert [statuses[body] for body in bad] == [500] * poisons
        assert {one.reason for one in sent if one.status == 500} == {"worker_crashed"}
        assert crashes == 2
        model.check(crowd)


def test_f04_poison_that_keeps_coming_costs_no_other_client_an_answer(rig, crowd):
    with rig.serve("f04b") as model:
        # When one after the other kills the only worker, right after its start
        with crowd.flow("f04b", 20, "good"):
            for number in range(3):
                crowd.ask("f04b", [f"segfault|{number}"])

        # Then only they fail, and a request that comes while the worker is replaced waits
        crowd.wait()
        statuses = Counter((one.status, one.body.startswith("good")) for one in crowd.log)
        assert statuses.pop((500, False)) == 3
        assert set(statuses) == {(200, True)}
        model.check(crowd)


def test_f04_poison_in_a_batch_that_fails_runs_three_times(rig, crowd):
    options = {"batch_size": 2, "max_batch_delay": TIME_TO_FILL_MS}
    with rig.serve("f04c", **options) as model:
        # When a batch fails as a whole, and one of its requests kills the worker that runs it alone
        crowd.send("f04c", ["raise value|first"])
        eventually(lambda: model.open_requests() == 1, 10)
        crowd.send("f04c", ["segfault|second"])
        statuses = {one.body: one.status for one in crowd.wait()}

        # Then one more worker tries it, and no third one
        assert statuses == {"raise value|first": 503, "segfault|second": 500}
        assert model.calls()[0].bodies == ["raise value|first", "segfault|second"]
        assert model.bodies().count("segfault|second") == 3


@pytest.mark.parametrize("poison", ["hog|too much", "killed|as by the kernel"])
def test_f06_request_that_runs_out_of_memory_fails_alone(rig, crowd, record_promise, poison):
    with rig.serve("f06", batch_size=8, max_batch_delay=50) as model:
        # When one request of a batch takes more memory than there is
        good = [f"good {number}" for number in range(7)]
        sent = crowd.ask("f06", [*good[:2], poison, *good[2:]])

        # Then it alone is told so
        answered = {one.body: (one.status, one.reason) for one in sent}
        record_promise("F6", f"{poison.split('|', maxsplit=1)[0]}: {answered[poison]}")
        assert answered.pop(poison) == (507, "out_of_resources")
        assert set(answered.values()) == {(200, "")}
        model.check(crowd)


@pytest.mark.parametrize("hangs", ["sleep 600|hangs", "deaf 600|hangs"])
def test_f07_handler_that_hangs_is_killed_and_its_neighbours_are_served(
    rig, crowd, record_promise, hangs
):
    with rig.serve("f07", batch_size=4, max_batch_delay=50, response_timeout=1) as model:
        # When one request of a batch never ends
        good = [f"good {number}" for number in range(3)]
        sent = crowd.ask("f07", [*good, hangs])

        # Then its worker is killed in time, each time, and only it fails
        runs = [call.started_at for call in model.calls() if hangs in call.bodies]
        hung = next(one for one in sent if one.body == hangs)
        killed_s = hung.answered_at - runs[-1]
        record_promise("F7", f"{killed_s:.2f} s")
        assert [one.status for one in sent if one is not hung] == [200] * 3
        assert (hung.status, hung.reason) == (500, "worker_crashed")
        assert len(runs) == 2
        assert killed_s >= 1.0
        assert_within(killed_s, 1.5)
        model.check(crowd)


def test_f07_worker_that_stands_still_is_ended_after_its_time(rig, crowd):
    with rig.serve("f07b", response_timeout=2) as model:
        # Given a worker that is stopped in the middle of a batch
        [sent] = crowd.send("f07b", ["hold|stopped"])
        [call] = model.wait_calls(1)
        os.kill(call.pid, signal.SIGSTOP)
        model.let_go()

        # When its time is over
        crowd.wait()

        # Then it is ended although it could not end itself, and its successor answers
        assert sent.status == 200
        assert_within(sent.seconds, 2.0 + STILL_S)
        assert len(model.calls()) == 2
        model.check(crowd)


def test_f08_frozen_worker_that_wakes_up_cannot_answer_any_more(rig, crowd, record_promise):
    rig.add_node()
    with rig.serve("f08") as model:
        model.wait_staffed(2)

        # Given a request that a worker is at
        [sent] = crowd.send("f08", ["sign|who am I"])
        [first] = model.wait_calls(1)
        frozen = model.node_of(first.pid)

        # When that node stands still for longer than it may, and wakes up while another one works
        for pid in (frozen.pid, first.pid):
            os.kill(pid, signal.SIGSTOP)
        [_, second] = model.wait_calls(2)
        model.let_go(first.pid)
        for pid in (frozen.pid, first.pid):
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: model.counters().get("stale", 0) >= 1, 5)
        model.let_go()
        crowd.wait()

        # Then the answer is that of the second, once
        record_promise(
            "F8", f"{model.counters()['replied']} reply, stale {model.counters()['stale']}"
        )
        assert second.pid != first.pid
        assert sent.answer == f"sign|who am I by {second.pid}"
        assert model.counters()["replied"] == 1
        model.check(crowd)

        # And the node that was taken for dead serves again
        model.wait_staffed(2)


def test_f13_worker_that_never_starts_backs_off_and_the_queue_refuses(rig, crowd, record_promise):
    loads = 5 if is_long() else 4
    archive, ledger = rig.archive("f13", files={"dies_at_load": ""})
    query = {"url": archive, "initial_workers": 1, "synchronous": "false"}
    assert rig.manage("POST", "models", **query).status_code == 202
    try:
        # Given a worker that dies at each start
        eventually(lambda: len(ledger.calls()) >= 3, 15)

        # When a client asks
        [sent] = crowd.ask("f13", ["hello"])
        ready = rig.http.get(f"{rig.inference}/readyz", timeout=5)

        # Then it is refused at once, the server is not ready, and each start comes later
        eventually(lambda: len(ledger.calls()) >= loads, 15)
        starts = [call.started_at for call in ledger.calls()]
        gaps_s = [later - sooner for sooner, later in itertools.pairwise(starts)]
        record_promise(
            "F13", f"gaps {', '.join(f'{gap:.1f}' for gap in gaps_s)} s; {sent.seconds:.3f} s"
        )
        assert (sent.status, sent.reason) == (503, "no_worker")
        assert_within(sent.seconds, 1.0)
        assert ready.status_code == 503
        assert gaps_s[1] >= 1.0
        assert gaps_s[2] >= 2.0
    finally:
        rig.manage("DELETE", "models/f13")


def test_f14_requests_wait_for_the_successor_of_the_last_worker(rig, crowd, record_promise):
    with rig.serve("f14", pace_s=0.01, batch_size=4) as model:
        # Given a worker that has proven itself and fifty requests
        crowd.ask("f14", ["first"])
        sent = crowd.send("f14", [f"hold|{number}" for number in range(50)])
        eventually(lambda: model.counters()["accepted"] == 51, 5)

        # When the last worker dies
        kill(model.wait_calls(2)[-1].pid)
        model.let_go()

        # Then its successor answers everything
        crowd.wait()
        ok = sum(one.status == 200 for one in sent)
        slowest_s = max(one.seconds for one in sent)
        record_promise("F14 replaced", f"{ok} x 200, {slowest_s:.1f} s")
        assert ok == 50
        model.check(crowd)


def test_f14_requests_are_told_at_their_deadline_when_no_worker_comes(rig, crowd, record_promise):
    with rig.serve("f14b", batch_size=1) as model:
        # Given a request at work and fifty behind it, with two seconds each
        crowd.send("f14b", ["hold|first"], timeout_ms=2000)
        model.wait_calls(1)
        sent = crowd.send("f14b", [f"r{number}" for number in range(50)], timeout_ms=2000)
        eventually(lambda: model.waiting() == 50, 5)

        # When the last node dies and none comes
        rig.remove_node(rig.nodes[0])
        crowd.wait()

        # Then each client is told so at the deadline
        late_s = max(abs(one.seconds - 2.0) for one in sent)
        record_promise("F14 gone", f"+-{late_s * 1000:.0f} ms")
        assert {one.status for one in sent} == {504}
        assert_within(late_s, DEADLINE_SLACK_S)
        assert model.bodies() == ["hold|first"]
        rig.restore()
        model.wait_staffed()
        model.check(crowd)
