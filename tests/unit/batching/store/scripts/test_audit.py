import random

import pytest

from batching.batcher import Nothing
from batching.protocol import Batch
from batching.store.ingress_side.ingress_queue import AuditCode
from batching.store.node_side.node_queue import ReclaimMode
from tests.support import KEY, eventually, items_of, make_reply

WORKERS = ("worker-a", "worker-b", "worker-c")
INGRESSES = ("ingress-a", "ingress-b")


def test_audit_knows_what_is_open_replied_and_lost(desk):
    # Given
    worker = desk.worker()
    desk.submit("replied", "leased", "queued")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
    worker.claim(1, 0.0)

    # When
    codes = desk.ingress().audit(["replied", "leased", "queued", "lost"])

    # Then
    assert codes == [AuditCode.REPLIED, AuditCode.OPEN, AuditCode.OPEN, AuditCode.LOST]


def test_audit_keeps_the_ingress_alive(desk):
    # Given
    desk.submit("a", ingress_id="ingress-a")
    desk.silence_ingress("ingress-a")

    # When
    codes = desk.ingress("ingress-a").audit([])

    # Then
    assert codes == []
    assert isinstance(desk.worker().claim(1, 0.0), Batch)


def test_audit_finds_everything_lost_when_redis_was_emptied(desk):
    # Given
    desk.submit("a", "b")
    desk.client.flushall()

    # When / Then
    assert desk.ingress().audit(["a", "b"]) == [AuditCode.LOST, AuditCode.LOST]


def test_audit_tells_of_what_is_left_of_a_version_that_nobody_knows_any_more(desk):
    # Given one that was unregistered while its worker had a batch
    worker = desk.worker()
    desk.submit("replied", "leased", "queued")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
    worker.claim(1, 0.0)
    desk.client.delete(desk.keys.config)
    names = ["replied", "leased", "queued", "lost"]

    # When the worker is silent
    before = desk.ingress().audit(names)
    desk.silence_worker()

    # Then
    assert before == [AuditCode.REPLIED, AuditCode.OPEN, AuditCode.OPEN, AuditCode.LOST]
    abandoned = AuditCode.ABANDONED
    assert desk.ingress().audit(names) == [AuditCode.REPLIED, abandoned, abandoned, AuditCode.LOST]

    # And what is registered has a node that takes it back
    desk.client.hset(desk.keys.config, "max_queue", 8)
    assert desk.ingress().audit(names) == before


def test_audit_goes_on_when_memory_is_full(real_desk, full_memory):
    # Given
    real_desk.submit("a")
    real_desk.silence_ingress()
    full_memory()

    # When
    codes = real_desk.ingress().audit(["a"])

    # Then
    assert codes == [AuditCode.OPEN]
    assert isinstance(real_desk.worker().claim(1, 0.0), Batch)


class Chaos:
    """Everybody does anything at any time; the steps come from a seeded generator."""

    def __init__(self, desk, seed):
        self.desk = desk
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
        self.desk.submit(*names, ingress_id=self.random.choice(INGRESSES))

    def claim(self):
        worker_id = self.random.choice(WORKERS)
        claimed = self.desk.worker(worker_id).claim(
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
        self.desk.worker(worker_id).reply(items, [make_reply("x")] * len(items))

    def cancel(self):
        if self.names:
            self.desk.ingress().cancel([self.random.choice(self.names)])

    def reclaim(self):
        worker_id = self.random.choice(WORKERS)
        mode = self.random.choice([ReclaimMode.DEAD, ReclaimMode.CRASHED, ReclaimMode.RELEASED])
        if mode is ReclaimMode.RELEASED:
            self.held[worker_id] = []  # an orderly worker has ended by then
        self.desk.node().reclaim(KEY, worker_id, mode)
        self.desk.open(max_queue=12)

    def age(self):
        if name := next((name for name in self.names if self.desk.request(name)), None):
            self.desk.age_request(name, 60_000)

    def lose(self):
        if self.names:
            self.desk.lose_request(self.random.choice(self.names))

    def refuse(self):
        if self.random.random() < 0.2:
            self.desk.client.delete(self.desk.keys.worker_beats)
            self.desk.node().refuse_waiting(KEY, "no_worker")
            self.desk.open(max_queue=12)

    def kill_ingress(self):
        if self.random.random() < 0.3:
            self.desk.silence_ingress(self.random.choice(INGRESSES))


@pytest.mark.parametrize("seed", range(3))
def test_counters_account_for_every_accepted_request_whatever_happens(desk, seed):
    # Given
    desk.open(max_queue=12)
    chaos = Chaos(desk, seed)

    # When
    for _ in range(120):
        chaos.step()

        # Then
        assert len(desk.queued()) <= 12 + 3 * 4  # released requests come on top of the capacity
        places = desk.queued() + desk.solo()
        places += [name for worker_id in WORKERS for name in desk.leased(worker_id)]
        assert desk.open_ids() <= set(places)
        assert len(places) == len(set(places))
        # What Redis has dropped is counted by whoever comes upon it.
        # One may be dropped between two looks.
        eventually(lambda: desk.unaccounted() == len(set(places) - desk.open_ids()))  # noqa: B023
    assert all(item.attempt <= 2 for item in chaos.attempts)

    # When everybody has been answered
    for worker_id in WORKERS:
        desk.node().reclaim(KEY, worker_id, ReclaimMode.CRASHED)
    desk.open(max_queue=12)
    worker = desk.worker()
    while (claimed := worker.claim(4, 0.0)) is not Nothing.EMPTY:
        worker.reply(items_of(claimed), [make_reply("x")] * len(claimed))

    # Then
    assert desk.open_ids() == set()
    assert desk.unaccounted() == 0
