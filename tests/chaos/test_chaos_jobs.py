"""F46: a storm over jobs. Every part dies in its turn, Redis too, and loses what it may lose."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chaos import checker
from tests.chaos.crowd import for_seconds
from tests.chaos.job_clients import JobClients
from tests.chaos.promises import is_long
from tests.chaos.rig import Rig, Served, kill
from tests.chaos.tcp_redis import UNSYNCED_S, LastingRedis
from tests.support import eventually

CLIENTS = 8
NODES = 2
QUIET_S = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


class Storm:
    """Ends one part after the other, each in its own way, and starts it again."""

    def __init__(self, rig: Rig, model: Served, store: LastingRedis) -> None:
        self.ended = 0
        self.lost: list[tuple[float, float]] = []  # what was accepted since, and until
        self._rig, self._model, self._store = rig, model, store
        self._turns = itertools.cycle(
            [
                self._kill_worker,
                rig.restart_ingress,
                self._kill_node,
                store.restart,
                store.crash,
                self._cut_power,
            ]
        )

    def turn(self, seconds: float) -> None:
        """Ends the next part; blocks for so long at least."""
        end = time.monotonic() + seconds
        next(self._turns)()
        self.ended += 1
        for_seconds(max(0.0, end - time.monotonic()))

    def wait_calm(self) -> None:
        """Waits until all workers are there and no request runs, or waits, for the second time.

        A request whose worker is killed twice has failed for good, as is promised.
        """
        eventually(self._is_calm, QUIET_S)

    def _is_calm(self) -> bool:
        keys, client = self._model.keys, self._rig.redis
        if client.zcard(keys.worker_beats) != NODES or client.exists(keys.suspects):
            return False
        return all(entry.endswith(b":1") for entry in self._leased())

    def _leased(self) -> list[bytes]:
        keys, client = self._model.keys, self._rig.redis
        workers = [worker_id.decode() for worker_id in client.zrange(keys.worker_beats, 0, -1)]
        leases = [client.lrange(keys.lease_prefix + worker_id, 0, -1) for worker_id in workers]
        return list(itertools.chain(*leases))

    def _kill_worker(self) -> None:
        self.wait_calm()
        kill(eventually(self._model.living_pids, QUIET_S)[0])

    def _kill_node(self) -> None:
        self.wait_calm()
        self._rig.remove_node(self._rig.nodes[0])
        self._rig.launch_node()

    def _cut_power(self) -> None:
        # While jobs run: then Redis comes back with leases on some that were answered long ago.
        eventually(self._leased, QUIET_S)
        self.lost.append(self._store.lose_power())


@pytest.fixture
def lasting_rig(tmp_path):
    """A rig of two nodes on a Redis with an append-only file."""
    with LastingRedis() as store:
        rig = Rig(tmp_path, store.url)
        try:
            rig.add_node()
            yield rig, store
        finally:
            rig.close()


@pytest.mark.timeout(900)
def test_f46_storm_loses_no_job_but_what_redis_had_not_written(lasting_rig, record_promise):
    turns, turn_s, least, pause_s = (36, 4.0, 20_000, 0.02) if is_long() else (6, 1.5, 400, 0.2)
    rig, store = lasting_rig
    with (
        rig.serve("f46", pace_s=0.05, batch_size=8) as model,
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

        # Then each job that Redis had written when its power failed has succeeded, once, and its
        # result is what was asked for
        log = [job for job in clients.log if not any(job.is_of(*times) for times in storm.lost)]
        at_risk = len(clients.log) - len(log)
        kept = [job for job in clients.log if job.status]
        lost = sum(not job.status for job in log)
        doubled = model.counters()["replied"] - len(kept)
        sent_again = sum(job.sent > 1 for job in clients.log)
        record_promise(
            "F46 storm",
            f"{storm.ended} kills: {len(log)} jobs, {sent_again} sent again: "
            f"{lost} lost, {doubled} doubled",
        )
        record_promise(
            "F46 power",
            f"{len(clients.log) - len(kept)} of the {at_risk} accepted in "
            f"{len(storm.lost)} x {UNSYNCED_S} s",
        )
        assert lost == 0
        assert doubled == 0
        assert checker.jobs(kept) == []

        # And the counters agree, and nothing is left to be done, or stays for ever
        assert model.counters()["accepted"] == len(kept)
        assert model.open_requests() == 0
        assert checker.conservation(model.counters(), 0) == []
        assert model.leaks() == []
