"""A replica that took over has an older state: whatever is in it again goes away by itself."""

import threading

import pytest

from batching.batcher import Batcher
from batching.policy import FixedPolicy
from batching.store.reclaiming import ReclaimMode
from tests.support import KEY, eventually, items_of, make_outage, make_reply
from workers.handling import worker as worker_module
from workers.handling.worker import Worker


class OlderState:
    """What the queue's keys were once, to be so again."""

    def __init__(self, client):
        self._client = client
        names = client.keys("{m:*")
        self._values = {name: (client.dump(name), client.pttl(name)) for name in names}

    def restore(self):
        for name in self._client.keys("{m:*"):
            self._client.delete(name)
        for name, (value, ttl_ms) in self._values.items():
            self._client.restore(name, max(0, ttl_ms), value)


@pytest.fixture
def queue(real_desk):
    """The desk, with one request that a worker has claimed, and that state."""
    real_desk.submit("a")
    claimed = items_of(real_desk.worker().claim(1, 0.0))
    return real_desk, claimed, OlderState(real_desk.client)


def test_lease_of_an_answered_request_goes_away_when_its_worker_lives(queue, monkeypatch):
    monkeypatch.setattr(worker_module, "LOOK_S", 0.1)
    # Given: it was answered and the answer received, which the successor has not heard of
    desk, claimed, older = queue
    worker, ingress = desk.worker(), desk.ingress()
    worker.reply(claimed, [make_reply("A")])
    assert list(ingress.receive([])) == ["a"]
    ingress.discard(["a"])
    assert desk.leased() == []
    runs = []

    def run(batch):
        runs.append([item.request_id for item in batch.items])
        if len(runs) == 1:
            # When the successor takes over while the worker is busy with another one
            older.restore()
        return [make_reply("again")] * len(batch.items)

    desk.submit("b")
    loop = Worker(Batcher(worker, FixedPolicy(1, 0.0)), worker, run, outage=make_outage())
    serving = threading.Thread(target=loop.serve)
    serving.start()
    try:
        # Then it is given back, run once more, and nothing is left of it
        eventually(lambda: len(runs) == 2 and not desk.open_ids())
    finally:
        loop.stop()
        serving.join(5)
    assert runs == [["b"], ["a"]]
    assert desk.leased() == []
    assert desk.unaccounted() == 0


def test_lease_of_an_answered_request_goes_away_when_its_worker_is_dead(queue):
    # Given
    desk, claimed, older = queue
    desk.worker().reply(claimed, [make_reply("A")])
    older.restore()
    # When its silence is noticed, and somebody else runs it
    desk.silence_worker()
    assert desk.node().reclaim(KEY, "worker-a", ReclaimMode.DEAD) == 1
    other = desk.worker("worker-b")
    other.reply(items_of(other.claim(1, 0.0)), [make_reply("again")])
    # Then
    assert desk.open_ids() == set()
    assert desk.leased() == desk.leased("worker-b") == []
    assert desk.unaccounted() == 0


def test_reply_that_nobody_waits_for_any_more_is_not_kept(queue):
    # Given an ingress that has its answer already
    desk, claimed, older = queue
    desk.worker().reply(claimed, [make_reply("A")])
    desk.ingress().receive([])
    older.restore()
    # When it is answered again
    desk.worker().reply(claimed, [make_reply("again")])
    # Then: it has a time to live, like the bell that names it
    assert desk.client.pttl(desk.keys.reply_prefix + "a") > 0
    assert desk.client.pttl(desk.keys.done_prefix + "ingress-a") > 0


def test_cancelled_request_that_is_back_is_run_at_most_once_more(queue):
    # Given
    desk, claimed, older = queue
    desk.ingress().cancel(["a"])
    older.restore()
    # When / Then
    desk.worker().reply(claimed, [make_reply("late")])
    assert desk.open_ids() == set()
    assert desk.unaccounted() == 0
