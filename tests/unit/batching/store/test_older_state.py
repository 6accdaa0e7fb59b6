"""A replica that took over has an older state: whatever is in it again goes away by itself."""

import threading

import pytest

from batching.batcher import Batcher
from batching.policy import FixedPolicy
from batching.store.node_queue import ReclaimMode
from tests.support import KEY, eventually, items_of, make_outage, make_reply
from workers.handling.worker import Worker


class OlderState:
    """What the queue's keys were once, to be so again."""

    def __init__(self, client):
        self._client = client
        names = client.keys("{model2:*")
        self._values = {name: (client.dump(name), client.pttl(name)) for name in names}

    def restore(self):
        for name in self._client.keys("{model2:*"):
            self._client.delete(name)
        for name, (value, ttl_ms) in self._values.items():
            self._client.restore(name, max(0, ttl_ms), value)


@pytest.fixture
def queue(real_harness):
    """The harness, with one request that a worker has claimed, and that state."""
    real_harness.submit("a")
    claimed = items_of(real_harness.worker().claim(1, 0.0))
    return real_harness, claimed, OlderState(real_harness.server())


def test_lease_of_an_answered_request_goes_away_when_its_worker_lives(queue):
    # Given: it was answered and the answer received, which the successor has not heard of
    harness, claimed, older = queue
    worker, ingress = harness.worker(), harness.ingress()
    worker.reply(claimed, [make_reply("A")])
    assert list(ingress.receive([])) == ["a"]
    ingress.discard(["a"])
    assert harness.leased() == []
    runs = []

    def run(batch):
        runs.append([item.request_id for item in batch.items])
        if len(runs) == 1:
            # When the successor takes over while the worker is busy with another one
            older.restore()
        return [make_reply("again")] * len(batch.items)

    harness.submit("b")
    loop = Worker(
        Batcher(worker, FixedPolicy(1, 0.0)), worker, run, look_s=0.1, outage=make_outage()
    )
    serving = threading.Thread(target=loop.serve)
    serving.start()
    try:
        # Then it is given back, run once more, and nothing is left of it
        eventually(lambda: len(runs) == 2 and not harness.open_ids())
    finally:
        loop.stop()
        serving.join(5)
    assert runs == [["b"], ["a"]]
    assert harness.leased() == []
    assert harness.unaccounted() == 0


def test_lease_of_an_answered_request_goes_away_when_its_worker_is_dead(queue):
    # Given
    harness, claimed, older = queue
    harness.worker().reply(claimed, [make_reply("A")])
    older.restore()
    # When its silence is noticed, and another worker runs it
    harness.silence_worker()
    assert harness.node().reclaim(KEY, "worker-a", ReclaimMode.DEAD) == 1
    other = harness.worker("worker-b")
    other.reply(items_of(other.claim(1, 0.0)), [make_reply("again")])
    # Then
    assert harness.open_ids() == set()
    assert harness.leased() == harness.leased("worker-b") == []
    assert harness.unaccounted() == 0
