import pytest

from batching.protocol import INLINE_LIMIT_BYTES
from batching.store.ingress_side.ingress_queue import Submission
from batching.store.node_side.node_queue import ReclaimMode
from batching.store.replies import LargeReply, decode_reply
from batching.store.worker_side import large_replies as large_reply_writer
from batching.store.worker_side.worker_queue import ReplyCode
from tests.support import KEY, items_of, make_reply, wire_of

LARGE = 4 * INLINE_LIMIT_BYTES


def calls_of(desk, *commands):
    """How often Redis has carried these out."""
    statistics = desk.client.info("commandstats")
    return sum(statistics.get(f"cmdstat_{command}", {}).get("calls", 0) for command in commands)


def claim(desk, worker, *request_ids):
    desk.submit(*request_ids)
    return items_of(worker.claim(len(request_ids), 0.0))


def test_reply_stores_each_answer_and_ends_the_ownership(desk):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a", "b")

    # When
    codes = worker.reply(items, [make_reply("A"), make_reply("B")])

    # Then
    assert codes == [ReplyCode.STORED, ReplyCode.STORED]
    assert decode_reply("a", desk.reply_value("a")) == make_reply("A")
    assert decode_reply("b", desk.reply_value("b")) == make_reply("B")
    assert desk.done() == ["a", "b"]
    assert desk.leased() == []
    assert desk.open_ids() == set()
    assert desk.counters() == {"accepted": 2, "replied": 2}


def test_reply_rings_each_ingress_for_its_own_requests(desk):
    # Given
    worker = desk.worker()
    desk.submit("a1", ingress_id="ingress-a")
    desk.submit("b1", ingress_id="ingress-b")
    desk.submit("a2", ingress_id="ingress-a")
    items = items_of(worker.claim(3, 0.0))

    # When
    worker.reply(items, [make_reply("x")] * 3)

    # Then
    assert desk.done("ingress-a") == ["a1", "a2"]
    assert desk.done("ingress-b") == ["b1"]


def test_reply_comes_with_the_doorbell_in_one_round_trip(real_desk):
    # Given an answer and a large one, which the ingress has to fetch
    worker = real_desk.worker()
    items = claim(real_desk, worker, "a", "b")
    worker.reply(items, [make_reply("A"), make_reply("B", size=LARGE)])
    calls_before = calls_of(real_desk, "mget", "get")

    # When
    values = real_desk.ingress().receive([])

    # Then
    assert decode_reply("a", values["a"]) == make_reply("A")
    with pytest.raises(LargeReply, match="1"):
        decode_reply("b", values["b"])
    assert calls_of(real_desk, "mget", "get") == calls_before


def test_reply_of_a_doorbell_that_only_names_it_is_read_from_its_key(desk):
    # Given
    [item] = claim(desk, desk.worker(), "a")
    desk.worker().reply([item], [make_reply("A")])
    desk.client.delete(desk.keys.done_prefix + "ingress-a")
    desk.client.rpush(desk.keys.done_prefix + "ingress-a", "a")

    # When
    values = desk.ingress().receive([])

    # Then
    assert decode_reply("a", values["a"]) == make_reply("A")


def test_reply_again_changes_nothing_when_its_acknowledgement_was_lost(desk):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a")
    worker.reply(items, [make_reply("first")])

    # When
    codes = worker.reply(items, [make_reply("second")])

    # Then
    assert codes == [ReplyCode.STORED_BEFORE]
    assert decode_reply("a", desk.reply_value("a")) == make_reply("first")
    assert desk.done() == ["a"]
    assert desk.counters()["replied"] == 1


def test_reply_is_unwanted_when_the_request_was_cancelled(desk):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a")
    desk.ingress().cancel(["a"])

    # When
    codes = worker.reply(items, [make_reply("A")])

    # Then
    assert codes == [ReplyCode.UNWANTED]
    assert desk.reply_value("a") is None
    assert desk.done() == []


def test_reply_of_an_earlier_attempt_is_stale_when_the_same_worker_has_the_next(desk):
    # Given
    worker = desk.worker()
    first = claim(desk, worker, "a")
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
    second = items_of(worker.claim(1, 0.0))

    # When
    codes = worker.reply(first, [make_reply("old")])

    # Then
    assert [item.attempt for item in second] == [2]
    assert codes == [ReplyCode.STALE]
    assert desk.reply_value("a") is None
    assert desk.counters()["stale"] == 1


def test_reply_of_another_worker_is_stale_and_the_owner_still_answers(desk):
    # Given
    zombie, owner = desk.worker("worker-z"), desk.worker("worker-b")
    old = claim(desk, zombie, "a")
    desk.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)
    new = items_of(owner.claim(1, 0.0))

    # When
    codes = [*zombie.reply(old, [make_reply("old")]), *owner.reply(new, [make_reply("new")])]

    # Then
    assert codes == [ReplyCode.STALE, ReplyCode.STORED]
    assert decode_reply("a", desk.reply_value("a")) == make_reply("new")
    assert desk.unaccounted() == 0


@pytest.mark.parametrize("mode", [ReclaimMode.RELEASED, ReclaimMode.RECOVERED], ids=str)
def test_reply_is_stale_when_its_request_was_given_back(desk, mode):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a")
    desk.node().reclaim(KEY, "worker-a", mode)

    # When
    codes = worker.reply(items, [make_reply("A")])

    # Then it waits for somebody else, who is the one to answer
    assert codes == [ReplyCode.STALE]
    assert desk.reply_value("a") is None
    assert desk.queued() == ["a"]
    other = desk.worker("worker-b")
    assert other.reply(items_of(other.claim(1, 0.0)), [make_reply("B")]) == [ReplyCode.STORED]
    assert desk.unaccounted() == 0


def test_reply_of_some_leaves_the_others_in_the_lease(desk):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a", "b", "c", "d")

    # When
    codes = worker.reply([items[2], items[0]], [make_reply("C"), make_reply("A")])

    # Then
    assert codes == [ReplyCode.STORED] * 2
    assert decode_reply("c", desk.reply_value("c")) == make_reply("C")
    assert decode_reply("a", desk.reply_value("a")) == make_reply("A")
    assert desk.leased() == ["b", "d"]
    assert desk.open_ids() == {"b", "d"}


def test_reply_of_a_batch_counts_for_those_that_are_still_owned(desk):
    # Given: of four, one client left, one request is another worker's, and one is nobody's yet
    slow = desk.worker("worker-slow")
    items = claim(desk, slow, "left", "taken", "waiting", "mine")
    desk.client.lrem(desk.keys.lease_prefix + "worker-slow", 1, "mine:1")
    desk.node().reclaim(KEY, "worker-slow", ReclaimMode.CRASHED)
    desk.client.rpush(desk.keys.lease_prefix + "worker-slow", "mine:1")
    desk.client.expire(desk.keys.lease_prefix + "worker-slow", 60)
    desk.ingress().cancel(["left"])
    other = desk.worker("worker-b")
    taken = items_of(other.claim(1, 0.0))

    # When
    codes = slow.reply(items, [make_reply(item.request_id) for item in items])

    # Then
    stored, stale, unwanted = ReplyCode.STORED, ReplyCode.STALE, ReplyCode.UNWANTED
    assert codes == [unwanted, stale, stored, stored]
    assert desk.done() == ["waiting", "mine"]
    assert desk.leased("worker-slow") == desk.solo() == []
    assert other.reply(taken, [make_reply("x")]) == [stored]
    assert desk.counters()["replied"] == 3
    assert desk.unaccounted() == 0


def test_reply_of_more_than_lua_can_pass_at_once_ends_them_all(real_desk):
    # Given: the first is not owned any more
    names = [f"r{number}" for number in range(2500)]
    real_desk.open(max_queue=3000)
    worker = real_desk.worker()
    items = claim(real_desk, worker, *names)
    real_desk.ingress().cancel(names[:1])

    # When
    codes = worker.reply(items, [make_reply("x")] * len(names))

    # Then
    assert codes == [ReplyCode.UNWANTED] + [ReplyCode.STORED] * 2499
    assert real_desk.done() == names[1:]
    assert real_desk.leased() == []
    assert real_desk.open_ids() == set()
    assert real_desk.unaccounted() == 0


def test_reply_to_the_last_open_request_leaves_no_key_of_theirs(desk):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a", "b")

    # When
    worker.reply(items, [make_reply("x")] * 2)

    # Then
    assert not desk.client.exists(desk.keys.open, desk.keys.lease_prefix + "worker-a")


def test_reply_is_stale_when_only_the_worker_differs(desk):
    # Given
    items = claim(desk, desk.worker("worker-a"), "a")

    # When
    codes = desk.worker("worker-b").reply(items, [make_reply("forged")])

    # Then
    assert codes == [ReplyCode.STALE]
    assert desk.leased("worker-a") == ["a"]


def test_reply_after_reclaim_is_accepted_when_nobody_has_claimed_again(desk):
    # Given
    slow = desk.worker("worker-slow")
    items = claim(desk, slow, "a")
    desk.node().reclaim(KEY, "worker-slow", ReclaimMode.CRASHED)

    # When
    codes = slow.reply(items, [make_reply("late")])

    # Then
    assert codes == [ReplyCode.STORED]
    assert decode_reply("a", desk.reply_value("a")) == make_reply("late")
    assert desk.open_ids() == set()
    assert desk.solo() == []


def test_reply_too_large_for_a_script_gets_a_key_of_its_own(desk):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a")
    answer = make_reply("A", size=LARGE)

    # When
    worker.reply(items, [answer])

    # Then
    assert desk.reply_value("a") == b"a@1"
    with pytest.raises(LargeReply):
        decode_reply("a", desk.reply_value("a"))
    value = desk.ingress().fetch_large({"a": "1"})["a"]
    assert decode_reply("a", value) == answer


@pytest.mark.parametrize("write_bytes", [1, 3 * LARGE, 100 * LARGE])
def test_reply_keeps_large_and_small_answers_of_a_batch_apart(desk, monkeypatch, write_bytes):
    # Given: large answers go to Redis in writes of so many bytes
    monkeypatch.setattr(large_reply_writer, "WRITE_BYTES", write_bytes)
    worker = desk.worker()
    names = "abcdefgh"
    items = claim(desk, worker, *names)
    answers = {name: make_reply(name, size=LARGE if name in "acdefh" else 0) for name in names}

    # When
    codes = worker.reply(items, list(answers.values()))

    # Then
    assert codes == [ReplyCode.STORED] * len(names)
    values = desk.ingress().fetch_large(dict.fromkeys("acdefh", "1"))
    values |= {name: desk.reply_value(name) for name in "bg"}
    assert {name: decode_reply(name, value) for name, value in values.items()} == answers


@pytest.mark.parametrize("reason", ["cancelled", "stale"])
def test_reply_leaves_no_large_answer_behind_when_nobody_wants_it(desk, reason):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a")
    if reason == "cancelled":
        desk.ingress().cancel(["a"])
    else:
        desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
        desk.worker("worker-b").claim(1, 0.0)

    # When
    worker.reply(items, [make_reply("A", size=LARGE)])

    # Then
    assert not desk.client.exists(desk.keys.large_reply_prefix + "a:1")


def test_reply_of_a_stale_attempt_cannot_overwrite_the_new_ones_large_answer(desk):
    # Given
    zombie, owner = desk.worker("worker-z"), desk.worker("worker-b")
    old = claim(desk, zombie, "a")
    desk.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)
    new = items_of(owner.claim(1, 0.0))
    owner.reply(new, [make_reply("new", size=LARGE)])

    # When
    zombie.reply(old, [make_reply("old", size=LARGE)])

    # Then
    assert desk.reply_value("a") == b"a@2"
    value = desk.ingress().fetch_large({"a": "2"})["a"]
    assert decode_reply("a", value).body.startswith(b"new")


def test_reply_drops_the_requests_large_body(desk):
    # Given
    worker = desk.worker()
    desk.ingress().submit([Submission("a", 60_000, wire_of("a", size=LARGE))])
    items = items_of(worker.claim(1, 0.0))

    # When
    worker.reply(items, [make_reply("A")])

    # Then
    assert not desk.has_body("a")


def test_reply_forgets_a_request_that_outlived_its_time_to_live(desk):
    # Given
    worker = desk.worker()
    items = claim(desk, worker, "a")
    desk.lose_request("a")

    # When
    codes = worker.reply(items, [make_reply("A")])

    # Then: that nobody waits is not worth a look before; it goes by its own TTL
    assert codes == [ReplyCode.STORED]
    assert 0 < desk.client.pttl(desk.keys.reply_prefix + "a") <= 60_000
    assert desk.leased() == []
    assert desk.open_ids() == set()
    assert desk.counters() == {"accepted": 1, "orphaned": 1}
    assert desk.unaccounted() == 0


def test_reply_goes_on_when_memory_is_full(real_desk, full_memory):
    # Given
    worker = real_desk.worker()
    items = claim(real_desk, worker, "a", "b")
    full_memory()

    # When
    codes = worker.reply(items, [make_reply("A"), make_reply("B")])

    # Then
    assert codes == [ReplyCode.STORED, ReplyCode.STORED]
    assert real_desk.done() == ["a", "b"]


def test_late_reply_goes_on_when_memory_is_full(real_desk, full_memory):
    # Given
    slow = real_desk.worker("worker-slow")
    items = claim(real_desk, slow, "a")
    real_desk.node().reclaim(KEY, "worker-slow", ReclaimMode.CRASHED)
    full_memory()

    # When
    codes = slow.reply(items, [make_reply("late")])

    # Then
    assert codes == [ReplyCode.STORED]
    assert real_desk.solo() == []
    assert real_desk.unaccounted() == 0


def test_reply_too_large_for_a_script_is_stored_when_memory_is_full(real_desk, full_memory):
    # Given
    worker = real_desk.worker()
    items = claim(real_desk, worker, "a")
    answer = make_reply("A", size=LARGE)
    full_memory()

    # When
    codes = worker.reply(items, [answer])

    # Then
    assert codes == [ReplyCode.STORED]
    assert decode_reply("a", real_desk.reply_value("a")) == answer
