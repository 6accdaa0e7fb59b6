import pytest

from batching.store.ingress_queue import Submission
from batching.store.node_queue import ReclaimMode
from tests.support import (
    DEAD_AFTER_MS,
    KEY,
    items_of,
    wire_of,
)


def leased(harness, *request_ids, worker_id="worker-a"):
    harness.submit(*request_ids)
    return items_of(harness.worker(worker_id).claim(len(request_ids), 0.0))


def test_reclaim_leaves_a_worker_alone_that_beats(harness):
    # Given
    leased(harness, "a")
    harness.silence_worker(ms=DEAD_AFTER_MS - 1000)

    # When
    count = harness.node().reclaim(KEY, "worker-a", ReclaimMode.DEAD)

    # Then
    assert count is None
    assert harness.leased() == ["a"]


def test_reclaim_takes_back_what_a_silent_worker_held_and_forgets_it(harness):
    # Given
    leased(harness, "a", "b")
    harness.client.hset(harness.keys.workers, "worker-a", "{}")
    harness.client.delete(harness.keys.wakeups)
    harness.silence_worker()

    # When
    count = harness.node().reclaim(KEY, "worker-a", ReclaimMode.DEAD)

    # Then
    assert count == 2
    assert harness.suspects() == ["a", "b"]
    assert harness.leased() == []
    assert harness.counters()["reclaimed"] == 2
    assert harness.client.zscore(harness.keys.worker_beats, "worker-a") is None
    assert not harness.client.hexists(harness.keys.workers, "worker-a")
    # And another worker is woken
    assert harness.wakeups() == 1


@pytest.mark.parametrize("mode", [ReclaimMode.CRASHED, ReclaimMode.RELEASED], ids=str)
def test_reclaim_of_an_unregistered_version_leaves_no_key_for_ever(real_harness, mode):
    # Given a worker that works on a version's only request when that is unregistered
    leased(real_harness, "a")
    real_harness.registry().close_queue(KEY)

    # When its node takes the request back, and dies before it refuses what waits
    assert real_harness.node().reclaim(KEY, "worker-a", mode) == 1

    # Then the request is there for another node, and for a day
    assert real_harness.queued() + real_harness.suspects() == ["a"]
    assert real_harness.backend.leaks() == []


def test_reclaim_answers_with_the_reason_that_the_node_saw(harness):
    # Given
    leased(harness, "a")

    # When
    harness.node(max_attempts=1).reclaim(KEY, "worker-a", ReclaimMode.CRASHED, "out_of_resources")

    # Then
    assert harness.reply_value("a") == b"a!out_of_resources"


def test_reclaim_keeps_the_body_of_a_request_that_is_tried_again(harness):
    # Given
    wire = wire_of("a", size=100_000)
    harness.ingress().submit([Submission("a", 60_000, wire)])
    harness.worker().claim(1, 0.0)

    # When
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then
    assert harness.worker("worker-b").claim(1, 0.0).items[0].request.to_wire() == wire


def test_reclaim_touches_nothing_that_another_worker_owns_by_now(harness):
    # Given: the zombie's lease still names a request that was claimed again
    leased(harness, "a", worker_id="worker-z")
    harness.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)
    harness.worker("worker-b").claim(1, 0.0)
    harness.client.rpush(harness.keys.lease_prefix + "worker-z", "a:1")

    # When
    count = harness.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)

    # Then
    assert count == 0
    assert harness.owned("worker-b") == [("a", 2)]
    assert harness.leased("worker-z") == []
    assert harness.suspects() == []
    assert harness.unaccounted() == 0


@pytest.mark.parametrize("mode", [ReclaimMode.CRASHED, ReclaimMode.RELEASED])
def test_reclaim_goes_on_until_a_large_lease_is_empty(harness, mode):
    # Given
    names = [f"r{number}" for number in range(600)]
    harness.open(max_queue=1000)
    leased(harness, *names)

    # When
    count = harness.node().reclaim(KEY, "worker-a", mode)

    # Then
    assert count == 600
    assert harness.queued() + harness.suspects() == names
    assert harness.leased() == []
    assert harness.client.zscore(harness.keys.worker_beats, "worker-a") is None


def test_reclaim_of_a_collector_wakes_another_worker_for_its_partial_batch(harness):
    # Given a worker that holds a window open, and a wakeup that another one has taken
    harness.submit("a")
    harness.worker("worker-a").claim(8, 60.0)
    harness.client.delete(harness.keys.wakeups)

    # When it dies
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then another one is woken and may collect
    assert harness.wakeups() == 1
    assert harness.worker("worker-b").claim(8, 60.0).waiting == 1
    assert harness.client.hget(harness.keys.gather, "worker") == b"worker-b"
