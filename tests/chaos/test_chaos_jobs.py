"""F46: a storm over jobs. Every part dies in its turn, Redis too, and loses what it may lose."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.chaos import checker
from tests.chaos.crowd import for_seconds
from tests.chaos.job_clients import JobClients, SentJob
from tests.chaos.lasting_redis import LastingRedis
from tests.chaos.promises import is_long
from tests.chaos.rig import Rig, Served, kill
from tests.support import Backend, eventually

CLIENTS = 8
NODES = 2
LOST_S = 1.0
AWAY_S = 0.5
QUIET_S = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


class Storm:
    """Ends one part after the other, each in its own way, and starts it again."""

    def __init__(self, rig: Rig, model: Served, store: LastingRedis) -> None:
        self.done: Counter[str] = Counter()
        self.cut_at: list[float] = []
        self._rig, self._model, self._store = rig, model, store
        self._turns = itertools.cycle(
            [
                self._kill_worker,
                self._kill_ingress,
                self._kill_node,
                self._stop_redis,
                self._kill_redis,
                self._cut_power,
            ]
        )

    def turn(self, seconds: float) -> None:
        """Ends the next part; blocks for so long at least."""
        end = time.monotonic() + seconds
        act = next(self._turns)
        act()
        self.done[act.__name__.strip("_")] += 1
        for_seconds(max(0.0, end - time.monotonic()))

    def wait_calm(self) -> None:
        """Waits until all workers are there and no request runs, or waits, for the second time.

        A request whose worker is killed twice has failed for good, as is promised.
        """
        eventually(self._is_calm, QUIET_S)

    def _is_calm(self) -> bool:
        keys, client = self._model.keys, self._rig.redis
        if len(self._rig.redis.zrange(keys.worker_beats, 0, -1)) != NODES:
            return False
        leases = [client.lrange(name, 0, -1) for name in client.scan_iter(keys.lease_prefix + "*")]
        is_first = all(entry.endswith(b":1") for entry in itertools.chain(*leases))
        return is_first and not client.exists(keys.suspects)

    def _kill_worker(self) -> None:
        self.wait_calm()
        [pid, *_] = eventually(
            lambda: [pid for pid in self._model.pids() if psutil.pid_exists(pid)], QUIET_S
        )
        kill(pid)

    def _kill_node(self) -> None:
        self.wait_calm()
        self._rig.remove_node(self._rig.nodes[0])
        self._rig.launch_node()

    def _kill_ingress(self) -> None:
        self._rig.process.kill()
        self._rig.start_ingress()

    def _stop_redis(self) -> None:
        self._store.stop()
        for_seconds(AWAY_S)
        self._store.start()

    def _kill_redis(self) -> None:
        self._store.crash()
        for_seconds(AWAY_S)
        self._store.start()

    def _cut_power(self) -> None:
        self.cut_at.append(self._store.lose_power())
        self._store.start()


def at_risk(log: list[SentJob], cut_at: list[float]) -> list[SentJob]:
    """Returns the jobs that were accepted within a second before the power failed."""
    return [job for job in log if any(0 <= at - job.accepted_at <= LOST_S for at in cut_at)]


@pytest.fixture
def lasting_rig(tmp_path: Path) -> Iterator[tuple[Rig, LastingRedis]]:
    """A rig of two nodes on a Redis with an append-only file."""
    with LastingRedis() as store:
        rig = Rig(tmp_path, store.url)
        try:
            rig.add_node()
            yield rig, store
        finally:
            rig.close()


@pytest.mark.timeout(900)
def test_f46_storm_loses_no_job_but_what_redis_had_not_written(
    lasting_rig: tuple[Rig, LastingRedis],
    record_promise: Callable[[str, str], None],
) -> None:
    turns, turn_s, least, pause_s = (36, 4.0, 20_000, 0.02) if is_long() else (6, 1.5, 400, 0.2)
    rig, store = lasting_rig
    with (
        rig.serve("f46", pace_s=0.02, batch_size=8) as model,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        # Given clients that send a job again, with its key, until it is accepted
        model.wait_staffed(NODES)
        clients = JobClients(rig.inference, "f46", CLIENTS, pause_s)
        storm = Storm(rig, model, store)

        # When one part after the other dies, and Redis is stopped, killed, and loses power
        submitting = clients.start(pool, least)
        try:
            for _ in range(turns):
                storm.turn(turn_s)
        finally:
            clients.finish()
        for one in submitting:
            one.result()
        clients.collect(pool)

        # Then every job that was accepted has succeeded, with its own result, but for those that
        # were accepted within a second before the power failed
        log = clients.log
        lost = [job for job in log if not job.status]
        excused = at_risk(log, storm.cut_at)
        unexcused = [job for job in lost if job not in excused]
        doubled = model.counters()["replied"] - (len(log) - len(lost))
        again = sum(job.sent > 1 for job in log)
        record_promise(
            "F46 storm",
            f"{dict(storm.done)}: {len(log)} jobs, {again} sent again: {len(unexcused)} lost, "
            f"{doubled} doubled, {dict(Counter(job.status for job in log if job.status))}",
        )
        record_promise(
            "F46 power",
            f"{len(lost)} of {len(excused)} lost, {len(storm.cut_at)} times",
        )
        ages = [round(at - job.accepted_at, 2) for job in unexcused for at in storm.cut_at]
        assert unexcused == [], ages
        assert doubled == 0
        assert checker.jobs([job for job in log if job not in lost]) == []

        # And the counters agree, and nothing stays for ever
        assert model.open_requests() == 0
        assert checker.conservation(model.counters(), 0) == []
        assert model.counters()["accepted"] == len(log) - len(lost)
        backend = Backend(client=rig.redis, connect=lambda: None, connect_async=lambda: None)
        leaks = [name for name in backend.leaks() if not name.startswith("rq:")]
        assert leaks == []
