"""F47: bodies in memory that is used again and again while clients leave and parts are killed."""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import requests
import uvloop

from tests.chaos.arena_rig import MOST, ArenaRig, open_arena_rig
from tests.chaos.crowd import for_seconds
from tests.chaos.patterned_clients import Found, visits
from tests.chaos.patterned_requests import FILES, Plan, ran, wrong
from tests.chaos.promises import is_long
from tests.chaos.rig import Served, kill
from tests.support import came_true

CLIENTS = 16
BACK_S = 20.0
# What becomes of requests whose parts die, or that had a few ms.
REFUSALS = {
    "500 worker_crashed",
    "503 no_worker",
    "503 queue_lost",
    "503 queue_memory",  # forgotten between a body that went by Redis and its record
    "503 redis_unavailable",
    "504 deadline_exceeded",
}

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@pytest.fixture
def arena_rig(tmp_path):
    with open_arena_rig(tmp_path) as rig:
        yield rig


class Faults:
    """Kills a worker or the ingress, or empties Redis, one after the other."""

    def __init__(self, rig: ArenaRig, model: Served, seed: int) -> None:
        self.did: Counter[str] = Counter()
        # By the ingresses that were killed.
        self.carried: dict[str, Counter[str]] = {"request": Counter(), "answer": Counter()}
        self._rig, self._model = rig, model
        self._chance = random.Random(seed)
        self._acts = [self._kill_worker, self._kill_ingress, self._flush_redis, self._restart_redis]
        self._due: list[Callable[[], None]] = []

    @property
    def are_all_done(self) -> bool:
        return len(self.did) == len(self._acts)

    def turn(self) -> None:
        """Does the next act, once the server has recovered from the last one."""
        if not self._due:
            self._due = self._chance.sample(self._acts, len(self._acts))
        act = self._due.pop()
        act()
        self.did[act.__name__.strip("_")] += 1
        assert came_true(self._is_staffed, BACK_S), self._rig.nodes[0].log()

    def count(self) -> None:
        """Counts what the living ingress has carried."""
        for kind, ways in self.carried.items():
            ways.update(self._rig.carried(kind))

    def share(self, kind: str) -> float:
        """Returns which part went by shared memory."""
        return self.carried[kind]["arena"] / self.carried[kind].total()

    def _is_staffed(self) -> bool:
        with contextlib.suppress(requests.RequestException, AssertionError):
            return len(self._model.living_pids()) == 2
        return False

    def _kill_worker(self) -> None:
        kill(self._chance.choice(self._model.pids()))

    def _kill_ingress(self) -> None:
        self.count()
        self._rig.restart_ingress()

    def _flush_redis(self) -> None:
        self._rig.redis.flushall()

    def _restart_redis(self) -> None:
        assert self._rig.server is not None
        kill(self._rig.server.pid)
        self._rig.server.start()


@pytest.mark.timeout(3600)
def test_f47_memory_that_is_used_again_shows_no_request_another_ones_byte(
    arena_rig, record_promise
):
    rig = arena_rig
    count, turn_s = (200_000, 3.0) if is_long() else (4_000, 0.3)
    seed = random.randrange(2**32)
    plan = Plan(
        models=("f47",),
        large_share=0.5,
        abort_share=0.4,
        most_at_once=3,
        body_bytes=(17 * 1024, 300 * 1024),
        hurried_share=0.1,
        has_faults=True,
    )
    options = {"files": FILES, "workers": 2, "batch_size": 8, "max_batch_delay": 2}
    began_s = time.monotonic()
    with rig.serve("f47", **options) as model, ThreadPoolExecutor(1) as pool:
        # When clients leave or have too little time, in memory with room for some twenty bodies,
        # workers and ingresses are killed, and Redis forgets everything or dies
        faults = Faults(rig, model, seed)

        def is_enough(found: Found) -> bool:
            return found.sent >= count and faults.are_all_done

        asking: Future[Found] = pool.submit(
            uvloop.run, visits(rig.port, plan, seed, clients=CLIENTS, until=is_enough)
        )
        while not asking.done():
            for_seconds(turn_s)
            faults.turn()
        found = asking.result()
        faults.count()
        seconds = time.monotonic() - began_s

        # Then every client that stayed has its own answer, to the byte, or was told why not
        shares = [faults.share(kind) for kind in ("request", "answer")]
        record_promise(
            "F47",
            f"{found.sent:,} requests, {found.aborted:,} left, {dict(faults.did)}, "
            f"{shares[0]:.0%} of the bodies and {shares[1]:.0%} of the answers by shared memory: "
            f"{found.answered:,} right, {len(found.faults)} wrong",
        )
        told = f"seed {seed}, {seconds:.0f} s, {found.lost} lost, {dict(found.refused)}"
        assert found.faults == [], told
        assert set(found.refused) <= REFUSALS, told
        assert found.answered > found.sent / 2, told
        assert min(found.lost, found.aborted, found.refused["504 deadline_exceeded"]) > 0, told
        assert min(shares) > 0.5, f"{faults.carried}; {told}"

        # And no handler has seen a body that was not whole or another one's
        assert wrong(model.ledger.path) == "", told
        assert set(found.names) <= set(ran(model.ledger.path)), told
        assert came_true(lambda: model.open_requests() == 0, 20)
        for part in (rig.process, *rig.nodes):
            assert "Traceback" not in part.log()

    # And the memory is as before the first request, and only the living ingress has any
    assert rig.ways_of_a_whole_arena() == {"arena": MOST, "redis": 0}
    assert came_true(lambda: len(rig.files()) == 1, 10), rig.files()
    for part in (rig.process, *rig.nodes):
        part.stop_cleanly()
    assert rig.files() == []
