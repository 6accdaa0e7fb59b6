import pytest

from batching.batcher import Nothing
from batching.store.ingress_side.ingress_queue import Submission
from batching.store.node_side.node_queue import ReclaimMode
from batching.store.worker_side.worker_queue import ReplyCode
from tests.support import (
    DEAD_AFTER_MS,
    KEY,
    attempts_of,
    ids_of,
    items_of,
    make_reply,
    wire_of,
)


def leased(desk, *request_ids, worker_id="worker-a"):
    desk.submit(*request_ids)
    return items_of(desk.worker(worker_id).claim(len(request_ids), 0.0))


def test_reclaim_leaves_a_worker_alone_that_beats(desk):
    # Given
    leased(desk, "a")
    desk.silence_worker(ms=DEAD_AFTER_MS - 1000)

    # When
    count = desk.node().reclaim(KEY, "worker-a", ReclaimMode.DEAD)

    # Then
    assert count is None
    assert desk.leased() == ["a"]


def test_reclaim_takes_back_what_a_silent_worker_held(desk):
    # Given
    leased(desk, "a", "b")
    desk.silence_worker()

    # When
    count = desk.node().reclaim(KEY, "worker-a", ReclaimMode.DEAD)

    # Then
    assert count == 2
    assert desk.solo() == ["a", "b"]
    assert desk.leased() == []
    assert desk.counters()["reclaimed"] == 2
    assert desk.unaccounted() == 0


def test_reclaim_forgets_the_dead_worker(desk):
    # Given
    leased(desk, "a")
    desk.client.hset(desk.keys.workers, "worker-a", "{}")
    desk.silence_worker()

    # When
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.DEAD)

    # Then
    assert desk.client.zscore(desk.keys.worker_beats, "worker-a") is None
    assert not desk.client.hexists(desk.keys.workers, "worker-a")


def test_reclaim_of_a_crashed_worker_does_not_wait_for_silence(desk):
    # Given
    leased(desk, "a")

    # When
    count = desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then
    assert count == 1
    assert desk.solo() == ["a"]


def test_reclaim_records_the_attempt_and_who_may_still_answer(desk):
    # Given
    leased(desk, "a")
    before = desk.request("a")

    # When
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then
    assert desk.request("a") == before | {"attempts": "1", "owner": "worker-a"}


@pytest.mark.parametrize("mode", [ReclaimMode.RELEASED, ReclaimMode.RECOVERED], ids=str)
def test_reclaim_leaves_a_crash_suspect_that_is_given_back_to_nobody(desk, mode):
    # Given
    items = leased(desk, "s1", worker_id="worker-x")
    desk.node().reclaim(KEY, "worker-x", ReclaimMode.CRASHED)
    desk.worker("worker-y").claim(1, 0.0)

    # When
    desk.node().reclaim(KEY, "worker-y", mode)

    # Then neither of the two who have had it may answer it
    record = desk.request("s1")
    assert (record["attempts"], record["owner"]) == ("1", "-")
    assert desk.worker("worker-x").reply(items, [make_reply("late")]) == [ReplyCode.STALE]
    assert desk.solo() == ["s1"]


def test_reclaim_keeps_the_order_and_lines_up_behind_earlier_suspects(desk):
    # Given
    leased(desk, "a", "b", worker_id="worker-x")
    leased(desk, "c", "d", worker_id="worker-y")

    # When
    for worker_id in ("worker-x", "worker-y"):
        desk.node().reclaim(KEY, worker_id, ReclaimMode.CRASHED)

    # Then
    assert desk.solo() == ["a", "b", "c", "d"]


def test_reclaim_wakes_a_worker(desk):
    # Given
    leased(desk, "a")
    desk.client.delete(desk.keys.bell)

    # When
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then
    assert desk.bells() == 1


def test_reclaim_answers_a_request_that_has_no_attempt_left(desk):
    # Given
    leased(desk, "poison")
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
    assert attempts_of(desk.worker("worker-b").claim(1, 0.0)) == [("poison", 2)]

    # When
    count = desk.node().reclaim(KEY, "worker-b", ReclaimMode.CRASHED)

    # Then
    assert count == 1
    assert desk.reply_value("poison") == b"poison!worker_crashed"
    assert desk.done() == ["poison"]
    assert desk.request("poison") == {}
    assert desk.solo() == []
    assert desk.counters()["failed"] == 1
    assert desk.unaccounted() == 0


def test_reclaim_answers_with_the_reason_that_the_node_saw(desk):
    # Given
    leased(desk, "a")

    # When
    desk.node(max_attempts=1).reclaim(KEY, "worker-a", ReclaimMode.CRASHED, "out_of_resources")

    # Then
    assert desk.reply_value("a") == b"a!out_of_resources"


@pytest.mark.parametrize("mode", [ReclaimMode.DEAD, ReclaimMode.CRASHED, ReclaimMode.RELEASED])
def test_reclaim_answers_an_expired_request_instead_of_queueing_it(desk, mode):
    # Given
    leased(desk, "late", "b")
    desk.age_request("late", 60_000)
    desk.silence_worker()

    # When
    desk.node().reclaim(KEY, "worker-a", mode)

    # Then
    assert desk.reply_value("late") == b"late!deadline_exceeded"
    assert desk.solo() + desk.queued() == ["b"]
    assert desk.unaccounted() == 0


def test_reclaim_drops_the_body_of_a_request_that_it_answers(desk):
    # Given
    desk.ingress().submit([Submission("a", 60_000, wire_of("a", size=100_000))])
    desk.worker().claim(1, 0.0)

    # When
    desk.node(max_attempts=1).reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then
    assert not desk.has_body("a")


def test_reclaim_keeps_the_body_of_a_request_that_is_tried_again(desk):
    # Given
    wire = wire_of("a", size=100_000)
    desk.ingress().submit([Submission("a", 60_000, wire)])
    desk.worker().claim(1, 0.0)

    # When
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then
    assert desk.worker("worker-b").claim(1, 0.0).items[0].request.encode() == wire


def test_reclaim_puts_released_requests_at_the_head_in_their_old_order(desk):
    # Given
    leased(desk, "a", "b", "c")
    desk.submit("d")

    # When
    count = desk.node().reclaim(KEY, "worker-a", ReclaimMode.RELEASED)

    # Then
    assert count == 3
    assert desk.queued() == ["a", "b", "c", "d"]
    assert desk.counters()["released"] == 3


def test_reclaim_takes_no_attempt_of_a_released_request(desk):
    # Given
    leased(desk, "a", "b")

    # When
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.RELEASED)

    # Then: still the first attempt, and still in one batch
    assert attempts_of(desk.worker("worker-b").claim(8, 0.0)) == [("a", 1), ("b", 1)]


def test_reclaim_keeps_a_released_crash_suspect_alone_and_first(desk):
    # Given
    leased(desk, "s1", "s2", worker_id="worker-x")
    desk.node().reclaim(KEY, "worker-x", ReclaimMode.CRASHED)
    assert attempts_of(desk.worker("worker-y").claim(8, 0.0)) == [("s1", 2)]

    # When
    desk.node().reclaim(KEY, "worker-y", ReclaimMode.RELEASED)

    # Then
    assert desk.solo() == ["s1", "s2"]
    assert attempts_of(desk.worker("worker-z").claim(8, 0.0)) == [("s1", 2)]


def test_reclaim_touches_nothing_that_another_worker_owns_by_now(desk):
    # Given: the zombie's lease still names a request that was claimed again
    leased(desk, "a", worker_id="worker-z")
    desk.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)
    desk.worker("worker-b").claim(1, 0.0)
    desk.client.rpush(desk.keys.lease_prefix + "worker-z", "a:1")

    # When
    count = desk.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)

    # Then
    assert count == 0
    assert desk.owned("worker-b") == [("a", 2)]
    assert desk.leased("worker-z") == []
    assert desk.solo() == []
    assert desk.unaccounted() == 0


def test_reclaimed_request_is_never_run_when_its_late_reply_came_first(desk):
    # Given
    items = leased(desk, "a")
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # When
    desk.worker("worker-a").reply(items, [make_reply("late")])

    # Then
    assert desk.worker("worker-b").claim(1, 0.0) is Nothing.EMPTY


@pytest.mark.parametrize("mode", [ReclaimMode.CRASHED, ReclaimMode.RELEASED])
def test_reclaim_goes_on_until_a_large_lease_is_empty(desk, mode):
    # Given
    names = [f"r{number}" for number in range(600)]
    desk.open(max_queue=1000)
    leased(desk, *names)

    # When
    count = desk.node().reclaim(KEY, "worker-a", mode)

    # Then
    assert count == 600
    assert desk.queued() + desk.solo() == names
    assert desk.leased() == []
    assert desk.client.zscore(desk.keys.worker_beats, "worker-a") is None


@pytest.mark.parametrize("mode", [ReclaimMode.DEAD, ReclaimMode.CRASHED])
def test_reclaim_twice_changes_nothing(desk, mode):
    # Given
    leased(desk, "a")
    desk.silence_worker()
    desk.node().reclaim(KEY, "worker-a", mode)

    # When
    count = desk.node().reclaim(KEY, "worker-a", mode)

    # Then
    assert count == 0
    assert desk.solo() == ["a"]


def test_poison_fails_alone_and_its_batch_mates_are_answered(desk):
    # Given: whoever takes the poison dies
    desk.submit("a", "poison", "b")
    answered = []
    for turn in range(6):
        worker_id = f"worker-{turn}"
        claimed = desk.worker(worker_id).claim(8, 0.0)
        if claimed is Nothing.EMPTY:
            break

        # When
        if "poison" in ids_of(claimed):
            desk.node().reclaim(KEY, worker_id, ReclaimMode.CRASHED)
        else:
            replies = [make_reply("x")] * len(claimed)
            desk.worker(worker_id).reply(items_of(claimed), replies)
            answered += ids_of(claimed)

    # Then
    assert answered == ["a", "b"]
    assert desk.reply_value("poison") == b"poison!worker_crashed"
    assert desk.unaccounted() == 0


def test_reclaim_goes_on_when_memory_is_full(real_desk, full_memory):
    # Given
    leased(real_desk, "a", "late")
    real_desk.age_request("late", 60_000)
    full_memory()

    # When
    count = real_desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then
    assert count == 2
    assert real_desk.solo() == ["a"]
    assert real_desk.reply_value("late") == b"late!deadline_exceeded"


def test_reclaim_of_a_collector_wakes_another_worker_for_its_partial_batch(desk):
    # Given a worker that holds a window open, and whoever was rung for the request has looked
    desk.submit("a")
    desk.worker("worker-a").claim(8, 60.0)
    desk.client.delete(desk.keys.bell)

    # When it dies
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then another one is woken and may collect
    assert desk.bells() == 1
    assert desk.worker("worker-b").claim(8, 60.0).waiting == 1
    assert desk.client.hget(desk.keys.gather, "worker") == b"worker-b"


def test_reclaim_leaves_the_window_of_another_worker_open(desk):
    # Given
    leased(desk, "a", worker_id="worker-x")
    desk.submit("b")
    desk.worker("worker-y").claim(8, 60.0)

    # When
    desk.node().reclaim(KEY, "worker-x", ReclaimMode.RELEASED)

    # Then
    assert desk.client.hget(desk.keys.gather, "worker") == b"worker-y"
