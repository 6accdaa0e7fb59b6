"""F3 and F41: a storm of kills, a machine that stands still, and a long time under small faults."""

import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator

import psutil
import pytest

from batching.store.keys import REPLY_TTL_MS
from ferry.process_tree.embedded_redis import EmbeddedRedis
from tests.chaos import checker
from tests.chaos.crowd import Crowd, for_seconds
from tests.chaos.promises import is_long
from tests.chaos.rig import Rig, Served, kill
from tests.support import Backend, came_true, eventually

MIB = 1024 * 1024
GROWTH_BYTES = 10 * MIB
POOLED = 8
CALM_S = 4.0
STILL_S = 25.0  # a node that is silent for three is taken for dead

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


class Killer:
    """Kills a node or a worker at each turn; a node is started again half a second later."""

    def __init__(self, rig: Rig, model: Served, seed: int) -> None:
        self.kills: dict[str, int] = defaultdict(int)
        self._rig = rig
        self._model = model
        self._random = random.Random(seed)

    def turn(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        if self._random.random() < 0.5:
            node = self._random.choice(self._rig.nodes)
            self._rig.remove_node(node)
            self.kills["nodes"] += 1
            for_seconds(0.5)
            self._rig.launch_node()
        # A worker of a node that was just killed is listed for a while.
        elif pids := [pid for pid in self._model.pids() if psutil.pid_exists(pid)]:
            kill(self._random.choice(pids))
            self.kills["workers"] += 1
        for_seconds(max(0.0, end - time.monotonic()))


@pytest.mark.timeout(180)
def test_f03_kill_storm_loses_nothing(rig: Rig, crowd: Crowd, record_promise) -> None:
    turns = 20 if is_long() else 5
    rig.add_node()
    rig.add_node()
    with rig.serve("f03", pace_s=0.01, batch_size=8, max_batch_delay=10) as model:
        # Given three nodes with a worker each, under load
        model.wait_staffed(3)
        killer = Killer(rig, model, seed=3)

        # When every two seconds one of them, or one of their workers, is killed
        with crowd.flow("f03", 150, "r"):
            for _ in range(turns):
                killer.turn(2.0)

        # Then no client sees anything but a delay
        found = checker.statuses(crowd.log)
        slowest_s = max(one.seconds for one in crowd.log)
        doubled = model.counters()["replied"] - len(crowd.log)
        record_promise(
            "F3", f"{2 * turns} s, {dict(killer.kills)}: {found}, slowest {slowest_s:.1f} s"
        )
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


@pytest.mark.timeout(120)
def test_machine_that_stands_still_loses_nothing(
    rig: Rig, crowd: Crowd, chaos_redis: EmbeddedRedis
) -> None:
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


class Faults:
    """Small faults at a low rate, none of which may be seen by a client."""

    def __init__(self, rig: Rig, model: Served, crowd: Crowd) -> None:
        self._rig, self._model, self._crowd = rig, model, crowd
        self._random = random.Random(41)

    def go_on(self, seconds: float) -> None:
        """A fault every three seconds; the last few seconds are calm."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            if left_s > CALM_S:
                self._random.choice([self._kill, self._cut, self._flush, self._leave])()
            for_seconds(min(3.0, left_s))

    def _kill(self) -> None:
        pids = [pid for pid in self._model.pids() if psutil.pid_exists(pid)]
        if len(pids) > 1:
            kill(pids[0])

    def _cut(self) -> None:
        self._rig.redis.client_kill_filter(_type="normal", skipme=True)

    def _flush(self) -> None:
        self._rig.redis.script_flush()

    def _leave(self) -> None:
        self._crowd.leave(self._crowd.send("f41", [f"left {time.monotonic()}"]))


def growth(
    before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns by how much bytes and descriptors of the lasting processes have grown."""
    lasting = before.keys() & after.keys()
    return (
        {name: after[name][0] - before[name][0] for name in lasting},
        {name: after[name][1] - before[name][1] for name in lasting},
    )


def request_keys(rig: Rig, *kinds: bytes) -> list[bytes]:
    names = rig.redis.scan_iter("{model2:f41*", count=1000)
    return [name for name in names if any(kind in name for kind in kinds)]


@pytest.mark.timeout(480)
def test_f41_soak_grows_nothing(rig: Rig, crowd: Crowd, record_promise) -> None:
    seconds, run_in_s = (300.0, 120.0) if is_long() else (24.0, 10.0)
    with rig.serve("f41", pace_s=0.005, batch_size=8, workers=2) as model:
        # When the server has run in, under faults, and then goes on for longer
        faults = Faults(rig, model, crowd)
        with (
            crowd.flow("f41", 50, "small "),
            crowd.flow("f41", 25, "middle ", padding=8_000),
            crowd.flow("f41", 5, "large ", padding=150_000),
        ):
            faults.go_on(run_in_s)
            before = figures(rig)
            faults.go_on(seconds - run_in_s)
            after = figures(rig)
        log = crowd.wait()

        # Then no process that lived through it has grown
        grown, descriptors = growth(before, after)
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
        backend = Backend(client=rig.redis, connect=lambda: None, connect_async=lambda: None)
        leaks = [name for name in backend.leaks() if not name.startswith("rq:")]
        record_promise(
            "F41 keys",
            f"{len(replies)} reply keys, {len(leaks)} without TTL, "
            f"{max(descriptors.values()):+d} descriptors; {found}",
        )
        assert request_keys(rig, b":requests", b":leases:", b":bodies:") == []
        assert leaks == []
        assert replies == [] or not is_long()
