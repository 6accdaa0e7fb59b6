"""A host is cut off for ten seconds under load, and joined again: a node's, an ingress', Redis'.

No process is touched. Packets vanish silently, so that a caller that waits for an answer learns
nothing; the long form also pulls cables, switches cards off and loses one direction only.
"""

import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.chaos import checker
from tests.chaos.crowd import Sent, for_seconds
from tests.chaos.promises import is_long
from tests.chaos.rig import Served
from tests.e2e.ferry_process import FerryProcess
from tests.network.hosts import Cut
from tests.network.rig import NetworkRig
from tests.support import came_true, eventually
from tests.timing import assert_within

CUT_S = 10.0
DEAD_AFTER_S = 3.0
RECLAIMED_S = 4.0
HEARD_S = 3.0  # for so long, who does not hear is heard
TOLD_S = 1.0
RECOVERED_S = 3.0
STOP_S = 8.0
SILENCE_S = 6.0
SLACK_S = 1.0  # for a machine that does other things, too
PROBES = {"livez": 200, "ping": 200, "readyz": 503}

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(240)]

each_way = pytest.mark.parametrize("how", list(Cut) if is_long() else [Cut.SILENT], indirect=True)


@each_way
def test_node_cut_off_is_replaced_and_works_again_by_itself(rig, crowd, record_promise, how):
    name = f"cut-node-{how}"
    with rig.serve(name, pace_s=0.2, batch_size=4, workers=2) as model:
        # Given a load on both nodes, and a request that is run for as long as the host is away
        model.wait_staffed(4)
        [held] = crowd.send(name, ["sign|held"], timeout_ms=30_000)
        [holding] = model.wait_calls(1)
        node = model.node_of(holding.pid)
        eventually(lambda: not control_workers(node), 30)  # it ends when no job has come
        family, pids = set(node.family()), set(model.pids())
        own = {pid for pid in pids if model.node_of(pid) is node}
        with crowd.flow(name, 10, "r", timeout_ms=20_000):
            for_seconds(1.0)

            # When the network of that node's host is gone for ten seconds
            with rig.network.cut_off(rig.host_of(node), how):
                cut_at = time.monotonic()
                for_seconds(CUT_S)
            joined_at = time.monotonic()
            model.let_go(holding.pid)

            # Then it works again, with the same processes, without anyone's help
            eventually(lambda: calls_since(model, joined_at, own), RECOVERED_S + 5)
            back_s = calls_since(model, joined_at, own)[0] - joined_at
            assert came_true(lambda: set(model.pids()) == pids, 10), rig.describe(name)
            eventually(lambda: model.counters().get("stale", 0) >= 1, 5)
            model.let_go()
            for_seconds(1.0)

        # And what it held was run elsewhere; its own late answer was refused
        crowd.wait()
        again_s = [c.started_at for c in model.calls() if held.body in c.bodies][1] - cut_at
        record_promise("N1 again", f"{how}: {again_s:.2f} s")
        record_promise("N1 works", f"{how}: {back_s:.2f} s")
        record_promise("N1 load", f"{how}: {checker.statuses(crowd.log)}")
        assert set(checker.statuses(crowd.log)) == {"200"}
        assert held.answer.split()[-1] not in {str(pid) for pid in own}
        assert model.counters()["replied"] == len(crowd.log)
        assert_within(again_s, RECLAIMED_S + SLACK_S)
        assert_within(back_s, RECOVERED_S + SLACK_S)
        assert set(node.family()) == family
        model.check(crowd)


@each_way
def test_ingress_cut_off_tells_its_clients_and_recovers(rig, crowd, record_promise, how):
    name = f"cut-ingress-{how}"
    with rig.serve(name, pace_s=0.4, batch_size=2, queue_size=200) as model:
        # Given forty patient clients and, behind them, twenty whose deadline comes first
        model.wait_staffed(2)
        patient = crowd.send(name, [f"patient {n}" for n in range(40)], timeout_ms=40_000)
        eventually(lambda: model.counters().get("accepted", 0) == 40, 5)
        hasty = crowd.send(name, [f"hasty {n}" for n in range(20)], timeout_ms=5000)
        eventually(lambda: model.counters().get("accepted", 0) == 60, 5)

        # When the ingress' host loses its network for ten seconds, and others come meanwhile
        with rig.network.cut_off(rig.hosts["ingress"], how):
            cut_at = time.monotonic()
            for_seconds(2.0)
            late = crowd.send(name, [f"late {n}" for n in range(20)], timeout_ms=5000)
            unseen = crowd.send("unseen", [f"unseen {n}" for n in range(20)], timeout_ms=5000)
            probes_s = probe(rig)
            for_seconds(cut_at + CUT_S - time.monotonic())
        joined_at = time.monotonic()
        back_s = model.seconds_until_served(crowd, RECOVERED_S + 5)
        crowd.wait()

        # Then each client was told in time, and served where that was possible
        told = checker.statuses(hasty + late + unseen)
        record_times(
            lambda what, text: record_promise(f"N2 {what}", f"{how}: {text}"),
            hasty,
            late + unseen,
            probes_s,
            back_s,
        )
        assert set(told) <= {"200", "503 redis_unavailable", "504 deadline_exceeded"}
        assert all(one.headers.get("retry-after") for one in late + unseen)
        assert checker.statuses(patient) == {"200": 40}

        # And nothing ran without a client for longer than an ingress may be silent
        crowd.log[:] = [one for one in crowd.log if one not in unseen]
        silent_at = cut_at + DEAD_AFTER_S + SLACK_S + (HEARD_S if how is Cut.DEAF else 0.0)
        in_vain = [at - cut_at for at in calls_since(model, silent_at) if at < joined_at]
        assert in_vain == []
        assert ran_without_client(model, hasty) == []
        # A deaf ingress is heard with what it submits, and alive to Redis for as long from there.
        late_slack_s = DEAD_AFTER_S if how is Cut.DEAF else SLACK_S
        assert ran_without_client(model, late, late_slack_s) == []
        model.check(crowd)


def test_ingress_cut_off_without_clients_serves_the_first_one_that_comes(
    rig, crowd, record_promise
):
    with rig.serve("cut-idle") as model:
        # Given a model that was in use, so that the ingress keeps its connections
        model.wait_staffed(2)
        assert crowd.ask("cut-idle", ["before"])[0].status == 200

        # When the ingress' host loses its network for longer than a connection may be silent
        with rig.network.cut_off(rig.hosts["ingress"]):
            for_seconds(SILENCE_S)

        # Then the first request is served
        [first] = crowd.ask("cut-idle", ["first"], timeout_ms=20_000)
        record_promise("N2 idle", f"{first.seconds:.2f} s")
        assert first.status == 200
        assert_within(first.seconds, RECOVERED_S + SLACK_S)
        model.check(crowd)


@each_way
def test_redis_cut_off_costs_everybody_time_and_nothing_else(rig, crowd, record_promise, how):
    name = f"cut-redis-{how}"
    with rig.serve(name, pace_s=0.2, batch_size=2, queue_size=200) as model:
        # Given a load, and a request at work
        model.wait_staffed(2)
        pids = set(model.pids())
        [held] = crowd.send(name, ["hold|held"], timeout_ms=40_000)
        eventually(lambda: held.body in model.bodies(), 5)
        patient = crowd.send(name, [f"patient {n}" for n in range(20)], timeout_ms=40_000)
        hasty = crowd.send(name, [f"hasty {n}" for n in range(20)], timeout_ms=5000)
        eventually(lambda: model.counters().get("accepted", 0) == 41, 5)

        # When no part reaches Redis for ten seconds
        with rig.network.cut_off(rig.hosts["redis"], how):
            cut_at = time.monotonic()
            model.let_go()
            for_seconds(2.0)
            late = crowd.send(name, [f"late {n}" for n in range(20)], timeout_ms=5000)
            probes_s = probe(rig)
            for_seconds(cut_at + CUT_S - time.monotonic())
        back_s = model.seconds_until_served(crowd, RECOVERED_S + 5)
        crowd.wait()

        # Then each client was told in time, and everything goes on as before
        record_times(
            lambda what, text: record_promise(f"N3 {what}", f"{how}: {text}"),
            hasty,
            late,
            probes_s,
            back_s,
        )
        assert checker.statuses([held, *patient]) == {"200": 21}
        assert ran_without_client(model, hasty + late) == []

        # And no worker was taken for dead that was only unheard
        assert model.bodies().count(held.body) == 1
        assert model.counters().get("reclaimed", 0) == 0
        assert came_true(lambda: set(model.pids()) == pids, 10), rig.describe(name)
        model.check(crowd)


def test_parts_cut_off_stop_in_time_when_they_are_told_to(rig, crowd, record_promise):
    with rig.serve("cut-stop", batch_size=2) as model:
        # Given a node at work, and clients that wait
        model.wait_staffed(2)
        crowd.send("cut-stop", [f"sleep 2|{n}" for n in range(20)], timeout_ms=30_000)
        model.wait_calls(2)
        node = rig.nodes[0]

        # When both are told to stop while no part reaches Redis
        with rig.network.cut_off(rig.hosts["redis"]):
            for_seconds(2.0)
            stopped = stop_together([node, rig.process])

        # Then they end in time and leave nothing behind, and every client has been told
        log = crowd.wait()
        slowest_s = max(one.seconds for one in stopped)
        record_promise("N4", f"{slowest_s:.1f} s")
        assert [one.left_behind for one in stopped] == [[], []]
        assert [one.exit_code for one in stopped] == [0, 0]
        assert_within(slowest_s, STOP_S + SLACK_S)
        assert checker.answers(log) == []


def record_times(
    record: Callable[[str, str], None],
    hasty: list[Sent],
    late: list[Sent],
    probes_s: float,
    back_s: float,
) -> None:
    """Asserts that all were told in time: those of 5 s at their deadline, and late ones at once."""
    over_s = max(one.seconds for one in hasty) - 5.0
    told_s = max(one.seconds for one in late)
    record("deadlines", f"{over_s:+.2f} s")
    record("new", f"{told_s:.2f} s")
    record("probes", f"{probes_s:.2f} s")
    record("recovers", f"{back_s:.2f} s")
    assert {(one.status, one.reason) for one in late} == {(503, "redis_unavailable")}
    assert_within(over_s, checker.DEADLINE_SLACK_S + SLACK_S)
    assert_within(told_s, TOLD_S + SLACK_S)
    assert_within(probes_s, TOLD_S + SLACK_S)
    assert_within(back_s, RECOVERED_S + SLACK_S)


def calls_since(model: Served, moment: float, pids: Iterable[int] = ()) -> list[float]:
    """Returns when the handler was called after this moment, by these processes or by any."""
    wanted = set(pids)
    return sorted(
        call.started_at
        for call in model.calls()
        if call.started_at > moment and (not wanted or call.pid in wanted)
    )


def control_workers(node: FerryProcess) -> list[str]:
    return [line for line in node.family() if "workers.control_jobs" in line]


def ran_without_client(model: Served, sent: list[Sent], slack_s: float = SLACK_S) -> list[str]:
    """Returns requests that were begun after their clients had been told of their failure."""
    failed = {one.body: one.answered_at for one in sent if one.status != 200}
    return [
        f"{body}: {call.started_at - failed[body]:.2f} s after"
        for call in model.calls()
        for body in call.bodies
        if body in failed and call.started_at > failed[body] + slack_s
    ]


def probe(rig: NetworkRig) -> float:
    """Asserts what each probe tells an orchestrator; returns the slowest one's seconds."""
    slowest_s = 0.0
    for path, expected in PROBES.items():
        began = time.monotonic()
        status = requests.get(f"{rig.inference}/{path}", timeout=10).status_code
        slowest_s = max(slowest_s, time.monotonic() - began)
        assert status == expected, path
    return slowest_s


def stop_together(parts: list[FerryProcess]) -> list:
    """Sends SIGTERM to all parts at once; returns what became of them."""
    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(lambda part: part.stop(signal.SIGTERM), parts))
