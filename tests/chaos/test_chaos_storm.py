"""F3 and F41: a storm of kills, a machine that stands still, and a long time under small faults."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from batching.store.keys import REPLY_TTL_MS
from tests.chaos import checker
from tests.chaos.crowd import Crowd, for_seconds
from tests.chaos.promises import is_long
from tests.chaos.rig import Rig, Served, kill
from tests.support import came_true, eventually

MIB = 1024 * 1024
GROWTH_BYTES = 10 * MIB
POOLED = 8
CALM_S = 4.0
STILL_S = 25.0  # a node that is silent for three is taken for dead

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@pytest.mark.timeout(180)
def test_f03_kill_storm_loses_nothing(rig, crowd, record_promise):
    turns = 20 if is_long() else 5
    rig.add_node()
    rig.add_node()
    with rig.serve("f03", pace_s=0.01, batch_size=8, max_batch_delay=10) as model:
        # Given three nodes with a worker each, under load
        model.wait_staffed(3)
        chance, kills = random.Random(3), {"nodes": 0, "workers": 0}

        # When every two seconds one of them, or one of their workers, is killed
        with crowd.flow("f03", 150, "r"):
            for _ in range(turns):
                end = time.monotonic() + 2.0
                if chance.random() < 0.5:
                    rig.remove_node(chance.choice(rig.nodes))
                    kills["nodes"] += 1
                    for_seconds(0.5)
                    rig.launch_node()
                elif pids := model.living_pids():
                    kill(chance.choice(pids))
                    kills["workers"] += 1
                for_seconds(max(0.0, end - time.monotonic()))

        # Then no client sees anything but a delay
        found = checker.statuses(crowd.log)
        slowest_s = max(one.seconds for one in crowd.log)
        doubled = model.counters()["replied"] - len(crowd.log)
        record_promise("F3", f"{2 * turns} s, {kills}: {found}, slowest {slowest_s:.1f} s")
        assert set(found) == {"200"}, found
        assert doubled == 0
        model.check(crowd)


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Lets these processes do nothing during the with block."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.timeout(240)
def test_machine_that_stands_still_loses_nothing(rig, crowd, chaos_redis):
    with rig.serve("frozen", pace_s=0.01, batch_size=4, workers=2) as model:
        # Given a load, and a request at work
        with crowd.flow("frozen", 4, "r"):
            [at_work] = crowd.send("frozen", ["hold|at work"])
            eventually(lambda: "hold|at work" in model.bodies(), 5)

            # When every process, Redis too, stands still, as those of a laptop that is closed do
            with stopped([chaos_redis.pid, *(process.pid for process in rig.processes())]):
                for_seconds(STILL_S)
            model.let_go()
            for_seconds(2.0)

        # Then each client, before and meanwhile, gets its own answer, and nothing runs twice
        assert set(checker.statuses(crowd.log)) == {"200"}, checker.statuses(crowd.log)
        assert at_work.seconds > STILL_S
        assert len(crowd.log) > 4 * STILL_S
        assert model.counters()["replied"] == len(crowd.log)
        assert len(model.bodies()) == len(set(model.bodies())) == len(crowd.log)
        model.check(crowd)


def figures(rig: Rig) -> dict[str, tuple[int, int]]:
    """Returns resident bytes and open descriptors of each long-lived process."""
    found = {}
    for process in rig.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # that of control jobs ends when idle
            name = f"{process.pid} {process.cmdline()[-1]}"
            found[name] = (process.memory_info().rss, process.num_fds())
    return found


def small_faults(
    rig: Rig, model: Served, crowd: Crowd, chance: random.Random, seconds: float
) -> None:
    """Does one every three seconds, which no client may see; the last few seconds are calm."""

    def kill_a_worker() -> None:
        if len(pids := model.living_pids()) > 1:
            kill(pids[0])

    faults = (
        kill_a_worker,
        lambda: rig.redis.client_kill_filter(_type="normal", skipme=True),
        rig.redis.script_flush,
        lambda: crowd.leave(crowd.send("f41", [f"left {time.monotonic()}"])),
    )
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        if left_s > CALM_S:
            chance.choice(faults)()
        for_seconds(min(3.0, left_s))


def request_keys(rig: Rig, *kinds: bytes) -> list[bytes]:
    names = rig.redis.scan_iter("{model2:f41*", count=1000)
    return [name for name in names if any(kind in name for kind in kinds)]


@pytest.mark.timeout(480)
def test_f41_soak_grows_nothing(rig, crowd, record_promise):
    seconds, run_in_s = (300.0, 120.0) if is_long() else (24.0, 10.0)
    with rig.serve("f41", pace_s=0.005, batch_size=8, workers=2) as model:
        # When the server has run in, under faults, and then goes on for longer
        chance = random.Random(41)
        with (
            crowd.flow("f41", 50, "small "),
            crowd.flow("f41", 25, "middle ", padding=8_000),
            crowd.flow("f41", 5, "large ", padding=150_000),
        ):
            small_faults(rig, model, crowd, chance, run_in_s)
            before = figures(rig)
            small_faults(rig, model, crowd, chance, seconds - run_in_s)
            after = figures(rig)
        log = crowd.wait()

        # Then no process that lived through it has grown
        lasting = before.keys() & after.keys()
        grown = {name: after[name][0] - before[name][0] for name in lasting}
        descriptors = {name: after[name][1] - before[name][1] for name in lasting}
        record_promise(
            "F41 memory",
            f"{seconds:.0f} s: {max(grown.values()) / MIB:+.1f} MB, {len(grown)} processes",
        )
        assert len(grown) >= 3  # workers are killed
        assert max(grown.values()) <= GROWTH_BYTES, grown
        # A few connections to Redis more or less are the pools' affair.
        assert max(descriptors.values()) <= POOLED, descriptors

        # And every request was answered
        found = checker.statuses(one for one in log if not one.left_at)
        assert set(found) == {"200"}, found
        model.check(crowd)

        # And nothing is left of any, but replies whose receipt was cut off, for their minute
        came_true(lambda: not request_keys(rig, b":replies:"), 65 if is_long() else 0.1)
        replies = request_keys(rig, b":replies:")
        assert all(0 < rig.redis.pttl(name) <= REPLY_TTL_MS for name in replies)
        leaks = model.leaks()
        record_promise(
            "F41 keys",
            f"{len(replies)} reply keys, {len(leaks)} without TTL, "
            f"{max(descriptors.values()):+d} descriptors; {found}",
        )
        assert request_keys(rig, b":requests", b":leases:", b":bodies:") == []
        assert leaks == []
        assert replies == [] or not is_long()
