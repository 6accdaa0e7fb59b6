"""F15 to F20 and F22 to F24: Redis dies, forgets, stands still, is full, is far away."""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos import checker
from tests.chaos.crowd import Crowd, for_seconds
from tests.chaos.promises import is_long
from tests.chaos.proxy import ChaosProxy
from tests.chaos.rig import Rig
from tests.chaos.tcp_redis import TcpRedis
from tests.support import came_true, eventually
from tests.timing import assert_within

DETECTED_S = 1.0
RECOVERED_S = 2.0

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@contextlib.contextmanager
def again_and_again(act: Callable[[], object], every_s: float) -> Iterator[None]:
    """Does the act at this pace during the with block, in a thread."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(every_s):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(10)


@pytest.mark.parametrize("loss", ["restart", "flush"])
def test_f15_f17_requests_survive_a_redis_that_lost_everything(
    rig, crowd, chaos_redis, record_promise, loss
):
    name = f"f15-{loss}"
    with rig.serve(name, pace_s=0.05, batch_size=4, max_batch_delay=10) as model:
        # Given thirty requests of which eight are done, one is at work, and the rest wait
        send = functools.partial(crowd.send, name, timeout_ms=10_000)
        sent = send(f"done {number}" for number in range(8))
        eventually(lambda: all(one.status == 200 for one in sent))
        sent += send(["hold|at work"])
        eventually(lambda: "hold|at work" in model.bodies())
        sent += send(f"waits {number}" for number in range(21))
        eventually(lambda: model.open_requests() == 22)

        # When Redis is emptied, or dies and comes back empty after two seconds
        if loss == "flush":
            rig.redis.flushall()
            lost_at = time.monotonic()
        else:
            os.kill(chaos_redis.pid, signal.SIGKILL)
            for_seconds(2.0)
            chaos_redis.launch()
            lost_at = time.monotonic()
        model.let_go()
        crowd.wait()

        # Then all of them are answered, and so is a request that comes now
        ok = sum(one.status == 200 for one in sent)
        last_s = max(one.answered_at for one in sent) - lost_at
        back_s = model.seconds_until_served(crowd, RECOVERED_S)
        row = "F17" if loss == "flush" else "F15"
        record_promise(row, f"{ok} x 200, {last_s:.1f} s after the loss")
        assert ok == 30, checker.statuses(sent)
        assert_within(back_s, RECOVERED_S)
        crowd.log[:] = sent
        model.check(crowd)


def test_f16_outage_is_told_and_ends_by_itself(rig, crowd, chaos_redis, record_promise):
    outage_s, deadline_s = (20.0, 5.0) if is_long() else (4.0, 2.0)
    with rig.serve("f16", pace_s=0.02, batch_size=4) as model:
        # Given requests in flight
        timeout_ms = int(deadline_s * 1000)
        early = crowd.send("f16", [f"hold|{n}" for n in range(40)], timeout_ms=timeout_ms)
        eventually(lambda: model.counters().get("accepted", 0) == len(early))

        # When Redis is away for longer than they may take
        os.kill(chaos_redis.pid, signal.SIGKILL)
        model.let_go()
        for_seconds(0.5)
        late = crowd.send("f16", [f"late {n}" for n in range(20)], timeout_ms=timeout_ms)
        for_seconds(outage_s - 0.5)
        chaos_redis.launch()
        back_s = model.seconds_until_served(crowd, RECOVERED_S + 5)

        # Then each client was told by its deadline, and those that came meanwhile at once
        over_s = max(one.seconds for one in early) - deadline_s
        told_s = max(one.seconds for one in late)
        record_promise("F16 in flight", f"{over_s:+.2f} s")
        record_promise("F16 new", f"{told_s:.2f} s")
        record_promise("F16 recovers", f"{back_s:.2f} s")
        assert {one.status for one in early} <= {200, 503, 504}
        assert {(one.status, one.reason) for one in late} == {(503, "redis_unavailable")}
        assert_within(over_s, checker.DEADLINE_SLACK_S)
        assert_within(told_s, DETECTED_S)
        assert_within(back_s, RECOVERED_S)
        assert all(one.headers.get("retry-after") for one in late)
        model.check(crowd)


def test_f18_killed_connections_lose_nothing(rig, crowd, record_promise):
    seconds = 10.0 if is_long() else 3.0
    with rig.serve("f18", pace_s=0.01, batch_size=4) as model:
        # When every connection is killed five times a second under load
        kill_all = lambda: rig.redis.client_kill_filter(_type="normal", skipme=True)  # noqa: E731
        with crowd.flow("f18", 50, "r"), again_and_again(kill_all, 0.2):
            for_seconds(seconds)

        # Then every request is answered once, with its own answer
        record_promise("F18", f"{seconds:.0f} s: {checker.statuses(crowd.log)}")
        assert set(checker.statuses(crowd.log)) == {"200"}
        model.check(crowd)


@pytest.mark.parametrize("how", ["CLIENT PAUSE", "SIGSTOP"])
def test_f19_redis_that_stands_still_makes_no_worker_dead(
    rig, crowd, chaos_redis, record_promise, how
):
    name = "f19-pause" if how == "CLIENT PAUSE" else "f19-stop"
    with rig.serve(name, pace_s=0.01, batch_size=4) as model, crowd.flow(name, 30, "r"):
        # Given a load, and a request at work all the while
        [long_one] = crowd.send(name, ["hold|at work"])
        eventually(lambda: "hold|at work" in model.bodies(), 5)

        # When Redis answers no part for two seconds
        if how == "CLIENT PAUSE":
            rig.redis.client_pause(2000, all=True)
            for_seconds(2.0)
        else:
            os.kill(chaos_redis.pid, signal.SIGSTOP)
            for_seconds(2.0)
            os.kill(chaos_redis.pid, signal.SIGCONT)
        model.let_go()
        for_seconds(1.0)

    # Then all were answered, and no living worker's requests were taken away
    log = crowd.wait()
    assert long_one.status == 200
    assert model.bodies().count("hold|at work") == 1
    told = {status for status in checker.statuses(log) if not status.startswith("200")}
    record_promise("F19", f"{how}: {checker.statuses(log)}, 0 reaped")
    assert told <= {"503 redis_unavailable"}
    assert model.counters().get("reclaimed", 0) == 0
    assert checker.answers(log) + checker.executions(log, model.calls()) == []


def test_f20_forgotten_scripts_are_sent_again(rig, crowd, record_promise):
    with rig.serve("f20", pace_s=0.01, batch_size=4) as model:
        # When the server forgets its scripts ten times a second
        with crowd.flow("f20", 50, "r"), again_and_again(rig.redis.script_flush, 0.1):
            for_seconds(2.0)

        # Then no client sees it
        record_promise("F20", str(checker.statuses(crowd.log)))
        assert set(checker.statuses(crowd.log)) == {"200"}
        model.check(crowd)


def test_f23_full_memory_stops_admission_only(rig, crowd, record_promise):
    with rig.serve("f23", pace_s=0.3, batch_size=2) as model:
        # Given memory for some ten bodies of 150 kB
        used = rig.redis.info("memory")["used_memory"]
        rig.redis.config_set("maxmemory", used + 2_500_000)
        try:
            # When forty come
            sent = crowd.ask("f23", [f"r{number:02}" for number in range(40)], padding=150_000)

            # Then what fits is served, and the rest is refused at once
            found = checker.statuses(sent)
            refused = [one for one in sent if one.reason == "queue_memory"]
            slowest_s = max(one.seconds for one in refused)
            assert set(found) == {"200", "503 queue_memory"}
            assert all(one.headers["retry-after"] for one in refused)

            # And the server recovers by itself
            [again] = crowd.ask("f23", ["again"], padding=150_000)
            assert again.status == 200

            # When memory stays full for longer than a silent worker may live
            [held] = crowd.send("f23", ["hold|held"])
            eventually(lambda: "hold|held" in model.bodies(), 5)
            workers = model.pids()
            rig.redis.config_set("maxmemory", 1_000_000)
            model.let_go()
            for_seconds(10.0 if is_long() else 4.0)
            [over] = crowd.ask("f23", ["over"])

            # Then beats and replies go on, and no worker is taken for dead
            assert held.status == 200
            assert (over.status, over.reason) == (503, "queue_memory")
            assert model.pids() == workers
            assert model.counters().get("reclaimed", 0) == 0
        finally:
            rig.redis.config_set("maxmemory", 0)
        record_promise("F23 refused", f"{slowest_s:.2f} s")
        record_promise("F23 works", f"0, {found}")
        assert crowd.ask("f23", ["after"])[0].status == 200


def test_f23_node_that_starts_while_memory_is_full_serves_what_waits(rig, crowd, record_promise):
    with rig.serve("f23n") as model:
        # Given requests that wait, and memory that is full
        sent = crowd.send("f23n", [f"hold|{number}" for number in range(10)])
        eventually(lambda: model.counters().get("accepted", 0) == len(sent))
        rig.redis.config_set("maxmemory", 1_000_000)
        try:
            # When the only node is replaced
            rig.remove_node(rig.nodes[0])
            model.let_go()
            rig.add_node()
            crowd.wait()
        finally:
            rig.redis.config_set("maxmemory", 0)

        # Then its successor serves them
        statuses = checker.statuses(sent)
        record_promise("F23 node", str(statuses))
        assert set(statuses) == {"200"}
        model.check(crowd)


@pytest.fixture
def far_rig(tmp_path_factory):
    """A rig whose parts reach their Redis only through the proxy."""
    folder = Path(tmp_path_factory.mktemp("far"))
    with TcpRedis() as primary:
        path = Path(f"/tmp/ferry-chaos-{os.getpid()}.sock")
        with ChaosProxy(path, primary.port, seed=1) as proxy:
            rig = Rig(folder, proxy.url, direct_url=f"redis://127.0.0.1:{primary.port}")
            try:
                yield rig, proxy, primary
            finally:
                rig.close()
        path.unlink(missing_ok=True)


@pytest.mark.timeout(180)
def test_f22_f24_far_and_failing_over_redis_loses_nothing(far_rig, record_promise):
    rig, proxy, primary = far_rig
    with (
        TcpRedis() as replica,
        Crowd(rig.port) as crowd,
        rig.serve("far", pace_s=0.01, batch_size=4) as model,
    ):
        # When answers take 100 ms and one in twenty is lost with its connection. The worker then
        # works off some eleven requests a second: more would only wait until clients give up.
        proxy.slow(0.1, reset_share=0.05, slice_bytes=7)
        with crowd.flow("far", 8, "slow"):
            for_seconds(30.0 if is_long() else 5.0)
            # Which ones are lost is drawn by chance.
            eventually(lambda: proxy.cuts > 5, 30)

        # And when they take twice that, which is further away than can be worked with
        cuts = proxy.cuts
        seen = len(crowd.log)
        proxy.slow(0.2, reset_share=0.05, slice_bytes=7)
        with crowd.flow("far", 8, "far"):
            for_seconds(30.0 if is_long() else 3.0)
            # More came than could be worked off; those are answered now, before they lose patience.
            proxy.heal()

        # Then no request is lost; each one that was refused was told so
        found = checker.statuses(crowd.log[:seen])
        beyond = checker.statuses(crowd.log[seen:])
        record_promise("F22 100", f"{cuts} resets: {found}")
        record_promise("F22 200", f"{proxy.cuts - cuts} resets: {beyond}")
        assert set(found) | set(beyond) <= {"200", "503 redis_unavailable"}
        assert found.get("200", 0) > sum(found.values()) / 2
        model.check(crowd)

        # When Redis fails over to a replica that missed the last writes
        replica.follow(primary)
        with crowd.flow("far", 60, "over", timeout_ms=8000):
            for_seconds(0.5)
            replica.stand_alone()
            for_seconds(0.2)
            switched_at = time.monotonic()
            proxy.retarget(replica.port)
            rig.redis = replica.client
            for_seconds(2.0)

        # Then every request has an answer, its own one
        log = [one for one in crowd.wait() if one.body.startswith("over")]
        found = checker.statuses(log)
        waited_s = max(one.seconds for one in log if one.sent_at < switched_at)
        record_promise("F24", f"{found}")
        assert checker.answers(log) == []
        assert set(found) <= {"200", "503 redis_unavailable", "503 queue_lost"}
        assert found["200"] >= 0.9 * sum(found.values())
        assert_within(waited_s, 5.0)
        assert checker.conservation(model.counters(), model.open_requests()) == []
        assert came_true(lambda: model.open_requests() == 0, 10), "requests stay open"
