import pytest

from batching.batcher import Nothing, Partial
from batching.store.node_queue import ReclaimMode
from tests.support import KEY, ids_of

LONG_S = 60.0


# --- when a partial batch leaves


def test_claim_takes_a_partial_batch_when_its_oldest_is_old_enough(harness):
    # Given
    harness.submit("a", "b")
    harness.age_request("a", 1000)
    worker = harness.worker()

    # When
    claimed = worker.claim(3, LONG_S)

    # Then
    assert isinstance(claimed, Partial)
    assert claimed.waiting == 2
    assert 1.0 <= claimed.oldest_age_s < 2.0
    assert harness.leased() == []
    assert ids_of(worker.claim(3, 1.0)) == ["a", "b"]


def test_claim_has_one_worker_collect_until_it_has_its_batch(harness):
    # Given
    collector, other = harness.worker("worker-a"), harness.worker("worker-b")
    harness.submit("a")
    assert isinstance(collector.claim(2, LONG_S), Partial)

    # When / Then
    assert other.claim(2, LONG_S) is Nothing.BUSY

    # When another one finds a full batch, or a crash suspect, it does not wait for the collector
    harness.submit("b")
    assert ids_of(other.claim(2, LONG_S)) == ["a", "b"]
    harness.node().reclaim(KEY, "worker-b", ReclaimMode.CRASHED)
    assert ids_of(other.claim(2, LONG_S)) == ["a"]
    assert harness.client.hget(harness.keys.gather, "worker") == b"worker-a"

    # When the collector has its own
    assert ids_of(collector.claim(2, 0.0)) == ["b"]
    harness.submit("c")

    # Then
    assert isinstance(other.claim(2, LONG_S), Partial)


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


@pytest.mark.parametrize("limit", [1, 4])
def test_claim_counts_as_a_beat_of_the_worker(harness, limit):
    # Given
    harness.submit("a")
    harness.silence_worker()

    # When
    harness.worker().claim(limit, 0.0)

    # Then
    assert harness.node().dead_workers([KEY]) == []
