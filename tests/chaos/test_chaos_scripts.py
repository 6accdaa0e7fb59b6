"""F9 to F12, F25, F38, F39: crash points, clocks, lost wake-ups and cancel storms at the queue."""

import asyncio
import datetime
import subprocess
import sys
import time

import pytest

from batching.batcher import Batcher, Nothing
from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from batching.policy import FixedPolicy
from batching.process.retries import Backoff
from batching.protocol import Batch
from batching.store.background_tasks import end_tasks
from batching.store.clients import IDLE_S, connect_async
from batching.store.node_queue import NodeQueue, ReclaimMode
from batching.store.worker_queue import WorkerQueue
from tests.chaos.crash_points import EXIT_CRASHED, POINTS
from tests.support import (
    DEAD_AFTER_MS,
    KEY,
    QueueHarness,
    attempts_of,
    ids_of,
    items_of,
    make_outage,
    make_reply,
)
from tests.timing import assert_within
from workers.node.heartbeat import Heartbeat
from workers.slots.slot import SlotRecord

NAMES = [f"r{number}" for number in range(8)]
STORM = 10_000
NODE = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
WORKER = WorkerStatus("worker-a", "node-a", 0, WorkerState.READY, 43, "cpu", "now")

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


def serve_all(harness: QueueHarness, worker_id: str) -> dict[str, int]:
    """Has another worker answer all that waits; returns each id with its attempt."""
    worker = harness.worker(worker_id)
    found: dict[str, int] = {}
    while isinstance(claimed := worker.claim(8, 0.0), Batch):
        found |= dict(attempts_of(claimed))
        worker.reply(items_of(claimed), [make_reply("second")] * len(claimed))
    return found


@pytest.mark.parametrize("point", POINTS)
def test_f09_f10_f11_crash_at_any_point_of_a_turn_loses_and_doubles_nothing(
    real_harness, record_promise, point
):
    # Given eight requests, and a worker that crashes at this point of its turn
    real_harness.submit(*NAMES)
    real_harness.silence_ingress(ms=-60_000)  # it lives, however long a process takes to start
    url = real_harness.backend.url
    words = [sys.executable, "-m", "tests.chaos.crash_points", url, "victim", point]
    crashed = subprocess.run(words, timeout=20, capture_output=True, text=True, check=False)
    assert crashed.returncode == EXIT_CRASHED, crashed.stderr

    # When its node takes back what it held, and another worker goes on
    real_harness.node().reclaim(KEY, "victim", ReclaimMode.CRASHED)
    again = serve_all(real_harness, "other")

    # Then the replies that were given stand, all of them or none: they are one script
    attempts = {"before claim": 1, "after claim": 2}
    expected = {} if point == "after reply" else dict.fromkeys(NAMES, attempts[point])
    row = {"before claim": "F9", "after claim": "F9", "after reply": "F10"}[point]
    record_promise(row, f"{point}: {len(again)} of 8 run again")
    assert again == expected
    assert sorted(real_harness.done()) == NAMES
    assert real_harness.counters()["replied"] == len(NAMES)
    assert real_harness.unaccounted() == 0
    assert real_harness.open_ids() == set()


def test_f12_late_reply_counts_once_and_the_request_is_not_run_again(harness, record_promise):
    # Given a worker that was taken for dead while it worked
    harness.submit("a", "b")
    first = harness.worker("first")
    claimed = first.claim(2, 0.0)
    harness.silence_worker("first")
    harness.node().reclaim(KEY, "first", ReclaimMode.DEAD)
    assert harness.suspects() == ["a", "b"]

    # When its replies come before another worker has claimed again, and once more
    codes = first.reply(items_of(claimed), [make_reply("late")] * 2)
    codes_again = first.reply(items_of(claimed), [make_reply("later")] * 2)

    # Then they count, once
    assert (codes, codes_again) == ([1, 1], [2, 2])
    assert harness.worker("second").claim(2, 0.0) is Nothing.EMPTY
    assert harness.done() == ["a", "b"]
    record_promise("F12", "1, 0 runs")
    assert harness.unaccounted() == 0


@pytest.mark.parametrize("hours", [-1, 1])
def test_f25_clock_steps_of_parts_mean_nothing(real_harness, record_promise, monkeypatch, hours):
    # Given a waiting and a claimed request
    real_harness.submit("claimed", "waiting", ttl_ms=60_000)
    worker = real_harness.worker()
    claimed = worker.claim(1, 0.0)

    # When every clock of the ingress, the worker and the node steps by an hour
    real_s, real_ns, real_mono = time.time, time.time_ns, time.monotonic  # noqa: TID251
    monkeypatch.setattr(time, "time", lambda: real_s() + hours * 3600)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * 3600 * 10**9)
    monkeypatch.setattr(time, "monotonic", lambda: real_mono() + hours * 3600)
    assert abs(datetime.datetime.now(datetime.UTC).timestamp() - time.time()) > 3000  # noqa: TID251

    # Then no worker is dead, nothing expires, and what is submitted now lives as long as it should
    assert real_harness.node().dead_workers([KEY]) == []
    assert real_harness.node().reclaim(KEY, "worker-a", ReclaimMode.DEAD) is None
    assert real_harness.submit("new", ttl_ms=5_000) == [1]
    assert real_harness.request("new")["ttl_ms"] == "5000"
    assert 65_000 < real_harness.client.pttl(real_harness.keys.open) <= 180_000
    assert worker.reply(items_of(claimed), [make_reply("x")]) == [1]
    assert ids_of(worker.claim(8, 0.0)) == ["waiting", "new"]
    record_promise("F25", "none")
    assert real_harness.counters().get("expired", 0) == 0


class WakeupThief(WorkerQueue):
    """A worker whose wake-up is always stolen before it waits for it."""

    on_empty = staticmethod(lambda: None)

    def claim(self, limit: int, patience_s: float):
        claimed = super().claim(limit, patience_s)
        if claimed is Nothing.EMPTY:
            self.on_empty()
        return claimed

    def wait_for_work(self, timeout_s: float) -> bool:
        self._client.delete(self._keys.wakeups)
        return super().wait_for_work(timeout_s)


async def test_f38_lost_wakeup_costs_a_second_at_most(real_harness, record_promise):
    # Given a worker about to wait, a node that has just beaten, and a request that comes just then
    client = real_harness.backend.connect()
    worker = WakeupThief(client, KEY, "worker-a", DEAD_AFTER_MS)
    submitted = []
    worker.on_empty = lambda: submitted or submitted.extend(real_harness.submit("a"))
    batcher = Batcher(worker, FixedPolicy(8, 0.005))

    # When its wake-up is lost
    async with connect_async(real_harness.backend.url) as node_client:
        heart = heart_of(NodeQueue(node_client, DEAD_AFTER_MS))
        await heart.beat()
        beating = asyncio.create_task(heart.run())
        began = time.monotonic()
        batch = await asyncio.to_thread(batcher.gather, lambda: False, IDLE_S)
        took_s = time.monotonic() - began
        await end_tasks([beating])

    # Then the request is found all the same
    record_promise("F38", f"{took_s:.2f} s")
    assert ids_of(batch) == ["a"]
    assert_within(took_s, 1.0)
    client.connection_pool.disconnect()


def heart_of(queue: NodeQueue) -> Heartbeat:
    """Returns the heartbeat of a node with the one worker of these tests."""
    outage = make_outage()
    record = SlotRecord(queue, outage, KEY, Backoff())
    record.status = WORKER
    return Heartbeat(queue, NODE, lambda: [record], lambda: [KEY], lambda: None, outage=outage)


def test_f39_cancel_storm_leaves_nothing_to_wade_through(real_harness, record_promise):
    # Given ten thousand requests before eight others
    storm = [f"storm-{number}" for number in range(STORM)]
    real_harness.open(max_queue=2 * STORM)
    for start in range(0, STORM, 2000):
        real_harness.submit(*storm[start : start + 2000])
    real_harness.submit(*NAMES)

    # When all of the ten thousand leave, the last one first
    slowest_s = 0.0
    backwards = storm[::-1]
    for start in range(0, STORM, 500):
        began = time.perf_counter()
        real_harness.ingress().cancel(backwards[start : start + 500])
        slowest_s = max(slowest_s, time.perf_counter() - began)

    # Then a claim finds the living at once, for an ingress that has beaten meanwhile
    real_harness.ingress().audit([])
    worker = real_harness.worker()
    began = time.perf_counter()
    claimed = worker.claim(8, 0.0)
    claim_s = time.perf_counter() - began
    each_us = slowest_s / 500 * 1e6
    record_promise("F39", f"{claim_s * 1000:.1f} ms; {each_us:.0f} us per cancel")
    assert ids_of(claimed) == NAMES
    assert_within(claim_s, 0.02)
    assert real_harness.counters()["cancelled"] == STORM
    assert real_harness.unaccounted() == 0
