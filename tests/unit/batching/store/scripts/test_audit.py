import random

import pytest

from batching.batcher import Nothing
from batching.protocol import Batch
from batching.store.ingress_side.ingress_queue import AuditCode
from batching.store.node_side.node_queue import ReclaimMode
from tests.support import KEY, eventually, items_of, make_reply

WORKERS = ("worker-a", "worker-b", "worker-c")
INGRESSES = ("ingress-a", "ingress-b")


def test_audit_knows_what_is_open_replied_and_lost(harness):
    # Given
    worker = harness.worker()
    harness.submit("replied", "leased", "queued")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
    worker.claim(1, 0.0)

    # When
    codes = harness.ingress().audit(["replied", "leased", "queued", "lost"])

    # Then
    assert codes == [AuditCode.REPLIED, AuditCode.OPEN, AuditCode.OPEN, AuditCode.LOST]


def test_audit_keeps_the_ingress_alive(harness):
    # Given
    harness.submit("a", ingress_id="ingress-a")
    harness.silence_ingress("ingress-a")

    # When
    codes = harness.ingress("ingress-a").audit([])

    # Then
    assert codes == []
    assert isinstance(harness.worker().claim(1, 0.0), Batch)


def test_audit_finds_everything_lost_when_redis_was_emptied(harness):
    # Given
    harness.submit("a", "b")
    harness.client.flushall()

    # When / Then
    assert harness.ingress().audit(["a", "b"]) == [AuditCode.LOST, AuditCode.LOST]


def test_audit_tells_of_what_is_left_of_a_version_that_nobody_knows_any_more(harness):
    # Given one that was unregistered while its worker had a batch
    worker = harness.worker()
    harness.submit("replied", "leased", "queued")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
    worker.claim(1, 0.0)
    harness.client.delete(harness.keys.config)
    names = ["replied", "leased", "queued", "lost"]

    # When the worker is silent
    before = harness.ingress().audit(names)
    harness.silence_worker()

    # Then
    assert before == [AuditCode.REPLIED, AuditCode.OPEN, AuditCode.OPEN, AuditCode.LOST]
    abandoned = AuditCode.ABANDONED
    assert harness.ingress().audit(names) == [
        AuditCode.REPLIED,
        abandoned,
        abandoned,
        AuditCode.LOST,
    ]

    # And what is registered has a node that takes it back
    harness.client.hset(harness.keys.config, "max_queue", 8)
    assert harness.ingress().audit(names) == before


def test_audit_goes_on_when_memory_is_full(real_harness, full_memory):
    # Given
    real_harness.submit("a")
    real_harness.silence_ingress()
    full_memory()

    # When
    codes = real_harness.ingress().audit(["a"])

    # Then
    assert codes == [AuditCode.OPEN]
    assert isinstance(real_harness.worker().claim(1, 0.0), Batch)


class Chaos:
    """Everybody does anything at any time; the steps come from a seeded generator."""

    def __init__(self, harness, seed):
        self.harness = harness
        self.random = random.Random(seed)
        self.names = []
        self.held = {worker_id: [] for worker_id in WORKERS}
        self.attempts = []

    def step(self):
        common = [self.submit, self.claim, self.reply]
        rare = [self.cancel, self.reclaim, self.age, self.lose, self.refuse, self.kill_ingress]
        self.random.choice([*common, *common, *rare])()

    def submit(self):
        names = [f"r{len(self.names) + number}" for number in range(self.random.randint(1, 6))]
        self.names += names
        self.harness.submit(*names, ingress_id=self.random.choice(INGRESSES))

    def claim(self):
        worker_id = self.random.choice(WORKERS)
        claimed = self.harness.worker(worker_id).claim(
            self.random.randint(1, 4), self.random.choice([0.0, 60.0])
        )
        if isinstance(claimed, Batch):
            self.held[worker_id] += items_of(claimed)
            self.attempts += items_of(claimed)

    def reply(self):
        worker_id = self.random.choice(WORKERS)
        items = self.held[worker_id]
        if self.random.random() < 0.7:
            self.held[worker_id] = []
        self.harness.worker(worker_id).reply(items, [make_reply("x")] * len(items))

    def cancel(self):
        if self.names:
            self.harness.ingress().cancel([self.random.choice(self.names)])

    def reclaim(self):
        worker_id = self.random.choice(WORKERS)
        mode = self.random.choice([ReclaimMode.DEAD, ReclaimMode.CRASHED, ReclaimMode.RELEASED])
        if mode is ReclaimMode.RELEASED:
            self.held[worker_id] = []  # an orderly worker has ended by then
        self.harness.node().reclaim(KEY, worker_id, mode)
        self.harness.open(max_queue=12)

    def age(self):
        if name := next((name for name in self.names if self.harness.request(name)), None):
            self.harness.age_request(name, 60_000)

    def lose(self):
        if self.names:
            self.harness.lose_request(self.random.choice(self.names))

    def refuse(self):
        if self.random.random() < 0.2:
            self.harness.client.delete(self.harness.keys.worker_beats)
            self.harness.node().refuse_waiting(KEY, "no_worker")
            self.harness.open(max_queue=12)

    def kill_ingress(self):
        if self.random.random() < 0.3:
            self.harness.silence_ingress(self.random.choice(INGRESSES))


@pytest.mark.parametrize("seed", range(3))
def test_counters_account_for_every_accepted_request_whatever_happens(harness, seed):
    # Given
    harness.open(max_queue=12)
    chaos = Chaos(harness, seed)

    # When
    for _ in range(120):
        chaos.step()

        # Then
        assert len(harness.queued()) <= 12 + 3 * 4  # released requests come on top of the capacity
        places = harness.queued() + harness.suspects()
        places += [name for worker_id in WORKERS for name in harness.leased(worker_id)]
        assert harness.open_ids() <= set(places)
        assert len(places) == len(set(places))
        # What Redis has dropped is counted by whoever comes upon it.
        # One may be dropped between two looks.
        eventually(lambda: harness.unaccounted() == len(set(places) - harness.open_ids()))  # noqa: B023
    assert all(item.attempt <= 2 for item in chaos.attempts)

    # When everybody has been answered
    for worker_id in WORKERS:
        harness.node().reclaim(KEY, worker_id, ReclaimMode.CRASHED)
    harness.open(max_queue=12)
    worker = harness.worker()
    while (claimed := worker.claim(4, 0.0)) is not Nothing.EMPTY:
        worker.reply(items_of(claimed), [make_reply("x")] * len(claimed))

    # Then
    assert harness.open_ids() == set()
    assert harness.unaccounted() == 0
