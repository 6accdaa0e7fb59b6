import pytest

from batching.batcher import Nothing, Partial
from batching.store.ingress_side.ingress_queue import Submission
from batching.store.node_side.node_queue import ReclaimMode
from tests.support import (
    DEAD_AFTER_MS,
    KEY,
    attempts_of,
    ids_of,
    items_of,
    make_reply,
    wire_of,
)

LONG_S = 60.0


def test_claim_finds_nothing_when_nothing_waits(desk):
    assert desk.worker().claim(4, LONG_S) is Nothing.EMPTY


def test_claim_takes_the_oldest_first_and_no_more_than_asked(desk):
    # Given
    desk.submit("a", "b", "c")

    # When
    claimed = desk.worker().claim(2, LONG_S)

    # Then
    assert ids_of(claimed) == ["a", "b"]
    assert desk.queued() == ["c"]


def test_claim_makes_the_worker_owner_of_the_first_attempt(desk):
    # Given
    desk.submit("a", "b")

    # When
    claimed = desk.worker().claim(2, 0.0)

    # Then
    assert attempts_of(claimed) == [("a", 1), ("b", 1)]
    assert desk.owned() == [("a", 1), ("b", 1)]
    assert desk.queued() == []
    assert desk.open_ids() == {"a", "b"}


def test_claim_says_how_long_a_request_has_waited(desk):
    # Given
    desk.submit("a")
    desk.age_request("a", 1500)

    # When
    claimed = desk.worker().claim(1, 0.0)

    # Then
    assert 1_500_000 <= claimed.items[0].queue_us < 2_500_000


# --- when a partial batch leaves


def test_claim_makes_the_worker_wait_when_the_batch_is_partial_and_young(desk):
    # Given
    desk.submit("a", "b")
    desk.age_request("a", 1000)

    # When
    claimed = desk.worker().claim(3, LONG_S)

    # Then
    assert isinstance(claimed, Partial)
    assert claimed.waiting == 2
    assert 1.0 <= claimed.oldest_age_s < 2.0
    assert desk.leased() == []


def test_claim_takes_a_partial_batch_when_its_oldest_is_old_enough(desk):
    # Given
    desk.submit("a", "b")
    desk.age_request("a", 61_000 - 60_000)

    # When
    claimed = desk.worker().claim(3, 1.0)

    # Then
    assert ids_of(claimed) == ["a", "b"]


def test_claim_takes_a_partial_batch_when_there_is_no_patience(desk):
    # Given
    desk.submit("a")

    # When / Then
    assert ids_of(desk.worker().claim(3, 0.0)) == ["a"]


def test_claim_takes_what_was_queued_in_the_future_for_new(desk):
    # Given: Redis' clock has stepped back by an hour
    desk.submit("a")
    desk.age_request("a", ms=-3_600_000)

    # When
    partial = desk.worker().claim(4, 0.05)

    # Then: a collector that died would not stop the queue for an hour either
    assert partial == Partial(waiting=1, oldest_age_s=0.0)
    assert 0 < desk.client.pttl(desk.keys.gather) <= 50 + 500
    assert desk.worker().claim(4, 0.0).items[0].queue_us == 0


def test_claim_sends_other_workers_away_while_one_collects(desk):
    # Given
    desk.submit("a")
    desk.worker("worker-a").claim(3, LONG_S)

    # When
    claimed = desk.worker("worker-b").claim(3, LONG_S)

    # Then
    assert claimed is Nothing.BUSY


def test_claim_lets_the_collector_look_again(desk):
    # Given
    worker = desk.worker()
    desk.submit("a")
    worker.claim(3, LONG_S)

    # When
    claimed = worker.claim(3, LONG_S)

    # Then
    assert isinstance(claimed, Partial)


def test_claim_lets_a_full_batch_leave_at_once_although_another_collects(desk):
    # Given
    desk.submit("a")
    desk.worker("worker-a").claim(2, LONG_S)
    desk.submit("b")

    # When
    claimed = desk.worker("worker-b").claim(2, LONG_S)

    # Then
    assert ids_of(claimed) == ["a", "b"]
    assert desk.client.hget(desk.keys.gather, "worker") == b"worker-a"


def test_claim_ends_the_collectors_turn_when_it_got_its_batch(desk):
    # Given
    worker = desk.worker("worker-a")
    desk.submit("a")
    worker.claim(2, LONG_S)
    worker.claim(2, 0.0)

    # When
    desk.submit("b")
    claimed = desk.worker("worker-b").claim(2, LONG_S)

    # Then
    assert isinstance(claimed, Partial)


def test_claim_ends_a_dead_collectors_turn_soon_after_its_window(desk):
    # Given
    desk.submit("a")

    # When
    desk.worker().claim(2, 2.0)

    # Then
    assert 0 < desk.client.pttl(desk.keys.gather) <= 2500


# --- who is woken


def test_claim_wakes_the_next_worker_when_work_remains(desk):
    # Given
    desk.submit("a", "b")
    desk.client.delete(desk.keys.bell)

    # When
    desk.worker().claim(1, 0.0)

    # Then
    assert desk.bells() == 1


def test_claim_wakes_nobody_when_it_took_everything(desk):
    # Given
    desk.submit("a", "b")

    # When
    desk.worker().claim(2, 0.0)

    # Then
    assert desk.bells() == 0


def test_claim_rings_only_one_token_however_often_work_remains(desk):
    # Given
    desk.submit("a", "b", "c", "d")

    # When
    for name in ("worker-a", "worker-b", "worker-c"):
        desk.worker(name).claim(1, 0.0)

    # Then
    assert desk.bells() == 1


def test_claim_leaves_the_bell_alone_while_collecting(desk):
    # Given
    desk.submit("a")
    desk.client.delete(desk.keys.bell)

    # When
    desk.worker().claim(2, LONG_S)

    # Then
    assert desk.bells() == 0


# --- what is not run


def test_claim_answers_an_expired_request_and_does_not_run_it(desk):
    # Given
    desk.submit("late", "b", ttl_ms=10_000)
    desk.age_request("late", 20_000)

    # When
    claimed = desk.worker().claim(2, 0.0)

    # Then
    assert ids_of(claimed) == ["b"]
    assert desk.reply_value("late") == b"late!deadline_exceeded"
    assert desk.done() == ["late"]
    assert desk.request("late") == {}
    assert desk.counters()["expired"] == 1
    assert desk.unaccounted() == 0


def test_claim_drops_requests_of_an_ingress_that_is_gone(desk):
    # Given
    desk.submit("orphan", ingress_id="ingress-gone")
    desk.submit("b", ingress_id="ingress-a")
    desk.silence_ingress("ingress-gone", ms=DEAD_AFTER_MS + 1000)

    # When
    claimed = desk.worker().claim(2, 0.0)

    # Then
    assert ids_of(claimed) == ["b"]
    assert desk.request("orphan") == {}
    assert desk.reply_value("orphan") is None
    assert desk.counters()["orphaned"] == 1
    assert desk.unaccounted() == 0


def test_claim_drops_the_large_body_of_what_it_does_not_run(desk):
    # Given
    bodies = [Submission(name, 10_000, wire_of(name, size=100_000)) for name in ("late", "b")]
    desk.ingress().submit(bodies)
    desk.age_request("late", 20_000)

    # When
    desk.worker().claim(2, 0.0)

    # Then
    assert not desk.has_body("late")
    assert desk.has_body("b")


def test_claim_finds_no_request_that_was_replied_to_late(desk):
    # Given: a dead worker's reply came after its request was queued again
    slow = desk.worker("worker-slow")
    desk.submit("a")
    items = items_of(slow.claim(1, 0.0))
    desk.node().reclaim(KEY, "worker-slow", ReclaimMode.CRASHED)
    assert desk.solo() == ["a"]
    slow.reply(items, [make_reply("A")])

    # When
    claimed = desk.worker("worker-b").claim(1, 0.0)

    # Then
    assert claimed is Nothing.EMPTY
    assert desk.solo() == []
    assert desk.unaccounted() == 0


def test_claim_forgets_a_crash_suspect_that_outlived_its_time_to_live(desk):
    # Given
    suspect(desk, "gone", "s2")
    desk.lose_request("gone")

    # When / Then
    assert ids_of(desk.worker().claim(4, LONG_S)) == ["s2"]
    assert desk.counters()["orphaned"] == 1
    assert desk.unaccounted() == 0


def test_claim_forgets_requests_that_outlived_their_time_to_live(desk):
    # Given
    desk.submit("gone", "also-gone", "b")
    desk.lose_request("gone")
    desk.lose_request("also-gone")

    # When
    claimed = desk.worker().claim(4, LONG_S)

    # Then
    assert isinstance(claimed, Partial)
    assert claimed.waiting == 1
    assert desk.open_ids() == {"b"}
    assert desk.counters()["orphaned"] == 2
    assert desk.unaccounted() == 0


def test_claim_finds_nothing_when_all_that_waits_has_outlived_its_time_to_live(desk):
    # Given
    desk.submit("gone", "also-gone")
    desk.lose_request("gone")
    desk.lose_request("also-gone")

    # When / Then
    assert desk.worker().claim(4, LONG_S) is Nothing.EMPTY
    assert desk.queued() == []
    assert desk.counters()["orphaned"] == 2
    assert desk.unaccounted() == 0


def test_claim_looks_at_a_bounded_number_of_dead_ids_and_rings_for_the_rest(desk):
    # Given
    desk.open(max_queue=1000)
    desk.submit(*(f"late-{number}" for number in range(20)), ttl_ms=10_000)
    for number in range(20):
        desk.age_request(f"late-{number}", 20_000)
    desk.submit("alive")

    # When
    worker = desk.worker()
    first, second, third = (worker.claim(1, 0.0) for _ in range(3))

    # Then
    assert first is Nothing.EMPTY
    assert second is Nothing.EMPTY
    assert ids_of(third) == ["alive"]
    assert desk.unaccounted() == 0


# --- crash suspects


def suspect(desk, *request_ids):
    """These requests were in a worker's hands when it died."""
    desk.submit(*request_ids)
    desk.worker("worker-dead").claim(len(request_ids), 0.0)
    desk.node().reclaim(KEY, "worker-dead", ReclaimMode.CRASHED)


def test_claim_hands_out_a_crash_suspect_alone_and_first(desk):
    # Given
    suspect(desk, "s1", "s2")
    desk.submit("a", "b")
    worker = desk.worker()

    # When
    batches = []
    for _ in range(3):
        claimed = worker.claim(8, 0.0)
        batches.append(attempts_of(claimed))
        worker.reply(items_of(claimed), [make_reply("x")] * len(claimed))

    # Then
    assert batches == [[("s1", 2)], [("s2", 2)], [("a", 1), ("b", 1)]]


def test_claim_hands_out_a_crash_suspect_although_another_collects(desk):
    # Given
    suspect(desk, "s1")
    desk.submit("a")
    desk.client.hset(desk.keys.gather, mapping={"worker": "worker-z", "limit": 8})
    desk.client.pexpire(desk.keys.gather, 60_000)

    # When / Then
    assert ids_of(desk.worker().claim(8, LONG_S)) == ["s1"]


def test_claim_hands_a_crash_suspect_out_as_nobody_elses(desk):
    # Given
    suspect(desk, "s1")
    waiting = desk.request("s1")
    assert (waiting["attempts"], waiting["owner"]) == ("1", "worker-dead")

    # When
    claimed = desk.worker().claim(1, 0.0)

    # Then
    assert ids_of(claimed) == ["s1"]
    assert claimed.items[0].request.encode() == wire_of("s1")
    assert desk.request("s1") == waiting | {"owner": "-"}
    assert desk.owned() == [("s1", 2)]


def test_claim_hands_out_a_crash_suspect_when_memory_is_full(real_desk, full_memory):
    # Given
    suspect(real_desk, "s1")
    full_memory()

    # When / Then
    assert attempts_of(real_desk.worker().claim(1, LONG_S)) == [("s1", 2)]
    assert real_desk.request("s1")["owner"] == "-"


# --- limits


def test_claim_leases_every_request_of_a_batch_larger_than_lua_can_pass_at_once(real_desk):
    # Given
    names = [f"r{number}" for number in range(9000)]
    real_desk.open(max_queue=10_000)
    for start in range(0, len(names), 3000):
        real_desk.submit(*names[start : start + 3000])

    # When
    claimed = real_desk.worker().claim(9000, 0.0)

    # Then
    assert ids_of(claimed) == names
    assert real_desk.leased() == names


def test_claim_goes_on_when_memory_is_full(real_desk, full_memory):
    # Given
    real_desk.submit("a", "late", "c")
    real_desk.age_request("late", 60_000)
    full_memory()
    worker = real_desk.worker()

    # When
    partial = worker.claim(8, LONG_S)
    claimed = worker.claim(8, 0.0)

    # Then
    assert isinstance(partial, Partial)
    assert ids_of(claimed) == ["a", "c"]
    assert real_desk.leased() == ["a", "c"]
    assert real_desk.reply_value("late") == b"late!deadline_exceeded"


@pytest.mark.parametrize("limit", [1, 4])
def test_claim_counts_as_a_beat_of_the_worker(desk, limit):
    # Given
    desk.submit("a")
    desk.silence_worker()

    # When
    desk.worker().claim(limit, 0.0)

    # Then
    assert desk.node().dead_workers([KEY]) == []
