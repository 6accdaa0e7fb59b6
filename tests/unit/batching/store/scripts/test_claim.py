import pytest

from batching.batcher import Nothing, Partial
from batching.store.ingress_queue import Submission
from batching.store.node_queue import ReclaimMode
from tests.support import (
    KEY,
    ids_of,
    wire_of,
)

LONG_S = 60.0


def test_claim_finds_nothing_when_nothing_waits(harness):
    assert harness.worker().claim(4, LONG_S) is Nothing.EMPTY


# --- when a partial batch leaves


def test_claim_makes_the_worker_wait_when_the_batch_is_partial_and_young(harness):
    # Given
    harness.submit("a", "b")
    harness.age_request("a", 1000)

    # When
    claimed = harness.worker().claim(3, LONG_S)

    # Then
    assert isinstance(claimed, Partial)
    assert claimed.waiting == 2
    assert 1.0 <= claimed.oldest_age_s < 2.0
    assert harness.leased() == []


def test_claim_takes_a_partial_batch_when_its_oldest_is_old_enough(harness):
    # Given
    harness.submit("a", "b")
    harness.age_request("a", 61_000 - 60_000)

    # When
    claimed = harness.worker().claim(3, 1.0)

    # Then
    assert ids_of(claimed) == ["a", "b"]


def test_claim_takes_what_was_queued_in_the_future_for_new(harness):
    # Given: Redis' clock has stepped back by an hour
    harness.submit("a")
    harness.age_request("a", ms=-3_600_000)

    # When
    partial = harness.worker().claim(4, 0.05)

    # Then: a collector that died would not stop the queue for an hour either
    assert partial == Partial(waiting=1, oldest_age_s=0.0)
    assert 0 < harness.client.pttl(harness.keys.gather) <= 50 + 500
    assert harness.worker().claim(4, 0.0).items[0].queue_us == 0


def test_claim_sends_other_workers_away_while_one_collects(harness):
    # Given
    harness.submit("a")
    harness.worker("worker-a").claim(3, LONG_S)

    # When
    claimed = harness.worker("worker-b").claim(3, LONG_S)

    # Then
    assert claimed is Nothing.BUSY


def test_claim_lets_a_full_batch_leave_at_once_although_another_collects(harness):
    # Given
    harness.submit("a")
    harness.worker("worker-a").claim(2, LONG_S)
    harness.submit("b")

    # When
    claimed = harness.worker("worker-b").claim(2, LONG_S)

    # Then
    assert ids_of(claimed) == ["a", "b"]
    assert harness.client.hget(harness.keys.gather, "worker") == b"worker-a"


def test_claim_ends_the_collectors_turn_when_it_got_its_batch(harness):
    # Given
    worker = harness.worker("worker-a")
    harness.submit("a")
    worker.claim(2, LONG_S)
    worker.claim(2, 0.0)

    # When
    harness.submit("b")
    claimed = harness.worker("worker-b").claim(2, LONG_S)

    # Then
    assert isinstance(claimed, Partial)


# --- wakeups


def test_claim_wakes_the_next_worker_when_work_remains(harness):
    # Given
    harness.submit("a", "b")
    harness.client.delete(harness.keys.wakeups)

    # When
    harness.worker().claim(1, 0.0)

    # Then
    assert harness.wakeups() == 1


# --- what is not run


def test_claim_drops_the_large_body_of_what_it_does_not_run(harness):
    # Given
    bodies = [Submission(name, 10_000, wire_of(name, size=100_000)) for name in ("late", "b")]
    harness.ingress().submit(bodies)
    harness.age_request("late", 20_000)

    # When
    harness.worker().claim(2, 0.0)

    # Then
    assert not harness.has_body("late")
    assert harness.has_body("b")


def test_claim_forgets_requests_that_outlived_their_time_to_live(harness):
    # Given
    harness.submit("gone", "also-gone", "b")
    harness.lose_request("gone")
    harness.lose_request("also-gone")

    # When
    claimed = harness.worker().claim(4, LONG_S)

    # Then
    assert isinstance(claimed, Partial)
    assert claimed.waiting == 1
    assert harness.open_ids() == {"b"}
    assert harness.counters()["orphaned"] == 2
    assert harness.unaccounted() == 0


def test_claim_looks_at_a_bounded_number_of_dead_ids_and_wakes_a_worker_for_the_rest(harness):
    # Given
    harness.open(max_queue=1000)
    harness.submit(*(f"late-{number}" for number in range(20)), ttl_ms=10_000)
    for number in range(20):
        harness.age_request(f"late-{number}", 20_000)
    harness.submit("alive")

    # When
    worker = harness.worker()
    first, second, third = (worker.claim(1, 0.0) for _ in range(3))

    # Then
    assert first is Nothing.EMPTY
    assert second is Nothing.EMPTY
    assert ids_of(third) == ["alive"]
    assert harness.unaccounted() == 0


# --- crash suspects


def suspect(harness, *request_ids):
    """These requests were in a worker's hands when it died."""
    harness.submit(*request_ids)
    harness.worker("worker-dead").claim(len(request_ids), 0.0)
    harness.node().reclaim(KEY, "worker-dead", ReclaimMode.CRASHED)


def test_claim_hands_out_a_crash_suspect_although_another_collects(harness):
    # Given
    suspect(harness, "s1")
    harness.submit("a")
    harness.client.hset(harness.keys.gather, mapping={"worker": "worker-z", "limit": 8})
    harness.client.pexpire(harness.keys.gather, 60_000)

    # When / Then
    assert ids_of(harness.worker().claim(8, LONG_S)) == ["s1"]


# --- limits


def test_claim_leases_every_request_of_a_batch_larger_than_lua_can_pass_at_once(real_harness):
    # Given
    names = [f"r{number}" for number in range(9000)]
    real_harness.open(max_queue=10_000)
    for start in range(0, len(names), 3000):
        real_harness.submit(*names[start : start + 3000])

    # When
    claimed = real_harness.worker().claim(9000, 0.0)

    # Then
    assert ids_of(claimed) == names
    assert real_harness.leased() == names


def test_claim_goes_on_when_memory_is_full(real_harness, full_memory):
    # Given
    real_harness.submit("a", "late", "c")
    real_harness.age_request("late", 60_000)
    full_memory()
    worker = real_harness.worker()

    # When
    partial = worker.claim(8, LONG_S)
    claimed = worker.claim(8, 0.0)

    # Then
    assert isinstance(partial, Partial)
    assert ids_of(claimed) == ["a", "c"]
    assert real_harness.leased() == ["a", "c"]
    assert real_harness.reply_value("late") == b"late!deadline_exceeded"


@pytest.mark.parametrize("limit", [1, 4])
def test_claim_counts_as_a_beat_of_the_worker(harness, limit):
    # Given
    harness.submit("a")
    harness.silence_worker()

    # When
    harness.worker().claim(limit, 0.0)

    # Then
    assert harness.node().dead_workers([KEY]) == []
