import pytest

from batching.protocol import INLINE_LIMIT_BYTES
from batching.store.node_queue import ReclaimMode
from batching.store.records import LargeReply, decode_reply
from batching.store.worker_queue import ReplyCode
from tests.support import KEY, items_of, make_reply

LARGE = 4 * INLINE_LIMIT_BYTES


def calls_of(harness, *commands):
    """How often Redis has carried these out."""
    statistics = harness.client.info("commandstats")
    return sum(statistics.get(f"cmdstat_{command}", {}).get("calls", 0) for command in commands)


def claim(harness, worker, *request_ids):
    harness.submit(*request_ids)
    return items_of(worker.claim(len(request_ids), 0.0))


def test_reply_tells_each_ingress_of_its_own_requests_and_ends_the_ownership(harness):
    # Given
    worker = harness.worker()
    harness.submit("a1", ingress_id="ingress-a")
    harness.submit("b1", ingress_id="ingress-b")
    harness.submit("a2", ingress_id="ingress-a")
    items = items_of(worker.claim(3, 0.0))

    # When
    codes = worker.reply(items, [make_reply(item.request_id) for item in items])

    # Then
    assert codes == [ReplyCode.STORED] * 3
    assert decode_reply("b1", harness.reply_value("b1")) == make_reply("b1")
    assert harness.done("ingress-a") == ["a1", "a2"]
    assert harness.done("ingress-b") == ["b1"]
    assert harness.leased() == []
    assert harness.open_ids() == set()
    assert harness.counters() == {"accepted": 3, "replied": 3}


def test_reply_comes_by_the_replies_list_in_one_round_trip(real_harness):
    # Given an answer and a large one, which the ingress has to fetch
    worker = real_harness.worker()
    items = claim(real_harness, worker, "a", "b")
    worker.reply(items, [make_reply("A"), make_reply("B", size=LARGE)])
    calls_before = calls_of(real_harness, "mget", "get")

    # When
    values = real_harness.ingress().receive([])

    # Then
    assert decode_reply("a", values["a"]) == make_reply("A")
    with pytest.raises(LargeReply, match="1"):
        decode_reply("b", values["b"])
    assert calls_of(real_harness, "mget", "get") == calls_before


def test_reply_of_another_worker_is_stale_and_the_owner_still_answers(harness):
    # Given
    zombie, owner = harness.worker("worker-z"), harness.worker("worker-b")
    old = claim(harness, zombie, "a")
    harness.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)
    new = items_of(owner.claim(1, 0.0))

    # When
    codes = [*zombie.reply(old, [make_reply("old")]), *owner.reply(new, [make_reply("new")])]

    # Then
    assert codes == [ReplyCode.STALE, ReplyCode.STORED]
    assert decode_reply("a", harness.reply_value("a")) == make_reply("new")
    assert harness.unaccounted() == 0


def test_reply_of_a_batch_counts_for_those_that_are_still_owned(harness):
    # Given: of four, one client left, one request is another worker's, and one waits again
    slow = harness.worker("worker-slow")
    items = claim(harness, slow, "left", "taken", "waiting", "mine")
    harness.client.lrem(harness.keys.lease_prefix + "worker-slow", 1, "mine:1")
    harness.node().reclaim(KEY, "worker-slow", ReclaimMode.CRASHED)
    harness.client.rpush(harness.keys.lease_prefix + "worker-slow", "mine:1")
    harness.client.expire(harness.keys.lease_prefix + "worker-slow", 60)
    harness.ingress().cancel(["left"])
    other = harness.worker("worker-b")
    taken = items_of(other.claim(1, 0.0))

    # When
    codes = slow.reply(items, [make_reply(item.request_id) for item in items])

    # Then
    stored, stale, unwanted = ReplyCode.STORED, ReplyCode.STALE, ReplyCode.UNWANTED
    assert codes == [unwanted, stale, stored, stored]
    assert harness.done() == ["waiting", "mine"]
    assert harness.leased("worker-slow") == harness.suspects() == []
    assert other.reply(taken, [make_reply("x")]) == [stored]
    assert harness.counters()["replied"] == 3
    assert harness.unaccounted() == 0


def test_reply_of_more_than_lua_can_pass_at_once_ends_them_all(real_harness):
    # Given: the first is not owned any more
    names = [f"r{number}" for number in range(2500)]
    real_harness.open(max_queue=3000)
    worker = real_harness.worker()
    items = claim(real_harness, worker, *names)
    real_harness.ingress().cancel(names[:1])

    # When
    codes = worker.reply(items, [make_reply("x")] * len(names))

    # Then
    assert codes == [ReplyCode.UNWANTED] + [ReplyCode.STORED] * 2499
    assert real_harness.done() == names[1:]
    assert real_harness.leased() == []
    assert real_harness.open_ids() == set()
    assert real_harness.unaccounted() == 0


@pytest.mark.parametrize("size", [INLINE_LIMIT_BYTES + 1, 2**16 - 1, 2**16, 4_000_000])
def test_reply_keeps_large_and_small_answers_of_a_batch_apart(harness, size):
    # Given
    worker = harness.worker()
    names = "abcdefgh"
    items = claim(harness, worker, *names)
    answers = {name: make_reply(name, size=size if name in "acdefh" else 0) for name in names}

    # When
    codes = worker.reply(items, list(answers.values()))

    # Then
    assert codes == [ReplyCode.STORED] * len(names)
    values = harness.ingress().fetch_large(dict.fromkeys("acdefh", "1"), {})
    values |= {name: harness.reply_value(name) for name in "bg"}
    found = {name: decode_reply(name, value).body for name, value in values.items()}
    assert found == {name: answer.body for name, answer in answers.items()}


@pytest.mark.parametrize("reason", ["cancelled", "stale"])
def test_reply_leaves_no_large_answer_behind_when_no_client_wants_it(harness, reason):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a")
    if reason == "cancelled":
        harness.ingress().cancel(["a"])
    else:
        harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
        harness.worker("worker-b").claim(1, 0.0)

    # When
    worker.reply(items, [make_reply("A", size=LARGE)])

    # Then
    assert not harness.client.exists(harness.keys.large_reply_prefix + "a:1")


def test_reply_of_a_stale_attempt_cannot_overwrite_the_new_ones_large_answer(harness):
    # Given
    zombie, owner = harness.worker("worker-z"), harness.worker("worker-b")
    old = claim(harness, zombie, "a")
    harness.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)
    new = items_of(owner.claim(1, 0.0))
    owner.reply(new, [make_reply("new", size=LARGE)])

    # When
    zombie.reply(old, [make_reply("old", size=LARGE)])

    # Then
    assert harness.reply_value("a") == b"a@2"
    value = harness.ingress().fetch_large({"a": "2"}, {})["a"]
    assert bytes(decode_reply("a", value).body).startswith(b"new")


def test_reply_forgets_a_request_that_outlived_its_time_to_live(harness):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a")
    harness.lose_request("a")

    # When
    codes = worker.reply(items, [make_reply("A")])

    # Then: the reply is stored unasked, and goes by its own TTL
    assert codes == [ReplyCode.STORED]
    assert 0 < harness.client.pttl(harness.keys.reply_prefix + "a") <= 60_000
    assert harness.leased() == []
    assert harness.open_ids() == set()
    assert harness.counters() == {"accepted": 1, "orphaned": 1}
    assert harness.unaccounted() == 0
