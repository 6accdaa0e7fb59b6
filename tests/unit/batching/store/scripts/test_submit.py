import pytest
from redis.exceptions import OutOfMemoryError

from batching.protocol import INLINE_LIMIT_BYTES
from batching.store.ingress_side.ingress_queue import Submission, SubmitCode
from tests.support import body_of, items_of, make_reply, wire_of

LARGE = 4 * INLINE_LIMIT_BYTES


def large(request_id):
    return Submission(request_id, 60_000, wire_of(request_id, size=LARGE))


def test_submit_records_each_request_with_its_ingress(desk):
    # When
    desk.submit("a", ingress_id="ingress-a")
    again = Submission("b", 5000, wire_of("b"), age_us=None)
    desk.ingress("ingress-b").submit([again, Submission("c", 5000, wire_of("c"), age_us=70)])

    # Then
    records = [desk.request(name) for name in "abc"]
    assert [record["ingress_id"] for record in records] == ["ingress-a", "ingress-b", "ingress-b"]
    assert [record["age_us"] for record in records] == ["0", "-", "70"]
    heads = [(record["attempts"], record["owner"], record["chunks"]) for record in records]
    assert heads == [("0", "-", "0")] * 3


def test_submit_queues_in_the_order_of_arrival(desk):
    # When
    codes = desk.submit("a", "b") + desk.submit("c")

    # Then
    assert codes == [SubmitCode.QUEUED] * 3
    assert desk.queued() == ["a", "b", "c"]
    assert desk.open_ids() == {"a", "b", "c"}
    assert desk.counters() == {"accepted": 3}


def test_submit_again_queues_nothing_twice_when_its_answer_was_lost(desk):
    # Given
    desk.submit("a", "b")

    # When
    codes = desk.submit("a", "b", "c")

    # Then
    assert codes == [SubmitCode.KNOWN, SubmitCode.KNOWN, SubmitCode.QUEUED]
    assert desk.queued() == ["a", "b", "c"]
    assert desk.counters() == {"accepted": 3}


def test_submit_again_queues_nothing_when_the_request_was_replied_to(desk):
    # Given
    worker = desk.worker()
    desk.submit("a")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])

    # When
    codes = desk.submit("a")

    # Then
    assert codes == [SubmitCode.KNOWN]
    assert desk.queued() == []


def test_submit_keeps_exactly_to_the_capacity(desk):
    # Given
    desk.client.hset(desk.keys.config, "max_queue", 3)
    desk.submit("a", "b")

    # When
    codes = desk.submit("c", "d") + desk.submit("e")

    # Then
    assert codes == [SubmitCode.QUEUED, SubmitCode.FULL, SubmitCode.FULL]
    assert desk.queued() == ["a", "b", "c"]
    assert desk.unaccounted() == 0


def test_submit_finds_room_again_when_a_request_was_claimed(desk):
    # Given
    desk.client.hset(desk.keys.config, "max_queue", 1)
    desk.submit("a")
    desk.worker().claim(1, 0.0)

    # When
    codes = desk.submit("b")

    # Then
    assert codes == [SubmitCode.QUEUED]


def test_submit_refuses_when_the_version_is_not_registered(desk):
    # Given
    desk.client.delete(desk.keys.config)

    # When
    codes = desk.submit("a", "b")

    # Then
    assert codes == [SubmitCode.NO_VERSION, SubmitCode.NO_VERSION]
    assert desk.open_ids() == set()


def test_submit_refuses_when_every_worker_is_silent(desk):
    # Given
    desk.silence_worker()

    # When
    codes = desk.submit("a")

    # Then
    assert codes == [SubmitCode.NO_BEAT]
    assert desk.queued() == []


def test_submit_tells_workers_that_have_left_from_silent_ones(desk):
    # Given
    desk.client.delete(desk.keys.worker_beats)

    # When / Then
    assert desk.submit("a") == [SubmitCode.NO_WORKER]


def test_submit_still_knows_a_queued_request_when_the_workers_have_gone(desk):
    # Given
    desk.submit("a")
    desk.silence_worker()

    # When
    codes = desk.submit("a", "b")

    # Then
    assert codes == [SubmitCode.KNOWN, SubmitCode.NO_BEAT]


@pytest.mark.parametrize(
    ("size", "has_own_key"),
    [(INLINE_LIMIT_BYTES // 2, False), (LARGE, True)],
)
def test_submit_carries_bodies_of_any_size_to_the_worker(desk, size, has_own_key):
    # Given
    wire = wire_of("hello", size=size)

    # When
    desk.ingress().submit([Submission("a", 60_000, wire)])

    # Then
    assert desk.has_body("a") == has_own_key
    assert bool(desk.request("a")["wire"]) != has_own_key
    claimed = desk.worker().claim(1, 0.0)
    assert claimed.items[0].request.encode() == wire
    assert body_of(claimed.items[0].request) == "hello"


@pytest.mark.parametrize("size", [INLINE_LIMIT_BYTES, INLINE_LIMIT_BYTES + 1])
def test_submit_moves_bodies_to_their_own_key_exactly_above_the_limit(desk, size):
    # Given
    padding = len(wire_of("x", size=size)) - size
    wire = wire_of("x", size=size - padding)
    assert len(wire) == size

    # When
    desk.ingress().submit([Submission("a", 60_000, wire)])

    # Then
    assert desk.has_body("a") == (size > INLINE_LIMIT_BYTES)


@pytest.mark.parametrize("refusal", ["full", "no version", "no worker"])
def test_submit_leaves_no_body_behind_when_the_request_is_refused(desk, refusal):
    # Given
    if refusal == "full":
        desk.client.hset(desk.keys.config, "max_queue", 1)
        desk.submit("first")
    elif refusal == "no version":
        desk.client.delete(desk.keys.config)
    else:
        desk.silence_worker()

    # When
    codes = desk.ingress().submit([large("a"), large("b")])

    # Then
    assert max(codes) <= 0
    assert not desk.has_body("a")
    assert not desk.has_body("b")


def test_submit_keeps_the_bodies_of_the_accepted_when_others_are_refused(desk):
    # Given
    desk.client.hset(desk.keys.config, "max_queue", 1)

    # When
    codes = desk.ingress().submit([large("a"), large("b")])

    # Then
    assert codes == [SubmitCode.QUEUED, SubmitCode.FULL]
    assert desk.has_body("a")
    assert not desk.has_body("b")


def test_submit_keeps_request_and_body_for_a_minute_after_the_deadline(desk):
    # When
    desk.ingress().submit([Submission("a", 10_000, wire_of("a", size=LARGE))])

    # Then
    assert 69_000 < desk.client.pttl(desk.keys.body_prefix + "a") <= 70_000
    assert 129_000 < desk.client.pttl(desk.keys.open) <= 130_000


@pytest.mark.parametrize(
    ("ttl_ms", "left_ms", "expected_ms"),
    [
        (10_000, 70_500, 70_500),  # enough: one command less
        (10_000, 69_500, 130_000),
        (10_000, 600_000, 600_000),  # others live longer
    ],
)
def test_submit_keeps_all_open_requests_as_long_as_the_longest_lived(
    desk, ttl_ms, left_ms, expected_ms
):
    # Given
    desk.submit("before")
    desk.client.pexpire(desk.keys.open, left_ms)

    # When
    desk.submit("a", ttl_ms=ttl_ms)

    # Then
    assert expected_ms - 500 < desk.client.pttl(desk.keys.open) <= expected_ms


def test_submit_of_several_counts_the_longest_time_to_live(desk):
    # When
    lives = [("a", 1000), ("b", 500_000), ("c", 2000)]
    desk.ingress().submit([Submission(name, ttl_ms, wire_of(name)) for name, ttl_ms in lives])

    # Then
    assert desk.client.pttl(desk.keys.open) > 559_000


def test_refused_submit_keeps_nothing_alive(desk):
    # Given
    desk.client.hset(desk.keys.config, "max_queue", 1)
    desk.submit("before")
    desk.client.pexpire(desk.keys.open, 1000)

    # When
    assert desk.submit("a") == [SubmitCode.FULL]

    # Then
    assert desk.client.pttl(desk.keys.open) <= 1000


def test_submit_counts_the_deadline_from_redis_time(desk):
    # When
    desk.submit("a", ttl_ms=10_000)

    # Then
    record = desk.request("a")
    seconds, microseconds = desk.client.time()
    assert 0 <= seconds * 1_000_000 + microseconds - int(record["queued_us"]) < 1_000_000
    assert record["ttl_ms"] == "10000"


def test_submit_rings_once_when_the_queue_stops_being_empty(desk):
    # When
    desk.submit("a")
    desk.submit("b", "c")

    # Then
    assert desk.bells() == 1


def test_submit_tells_the_collector_when_its_batch_is_full_and_nobody_else(desk):
    # Given
    desk.submit("a")
    desk.worker().claim(3, 60.0)
    desk.client.delete(desk.keys.bell)

    # When
    desk.submit("b")
    tokens_when_partial = desk.more_tokens()
    desk.submit("c")
    desk.submit("d")

    # Then
    assert tokens_when_partial == 0
    assert desk.more_tokens() == 1
    assert desk.bells() == 0


@pytest.mark.parametrize("size", [0, LARGE])
def test_submit_is_refused_whole_when_memory_is_full(real_desk, full_memory, size):
    # Given
    real_desk.submit("before")
    full_memory()
    submissions = [Submission(name, 60_000, wire_of(name, size=size)) for name in ("a", "b")]

    # When: a large body is refused by itself, small ones with the script that carries them
    if size:
        assert real_desk.ingress().submit(submissions) == [SubmitCode.NO_MEMORY] * 2
    else:
        with pytest.raises(OutOfMemoryError):
            real_desk.ingress().submit(submissions)

    # Then
    assert real_desk.queued() == ["before"]
    assert real_desk.open_ids() == {"before"}
    assert real_desk.counters() == {"accepted": 1}
    assert real_desk.request("a") == {}


def test_submit_queues_the_requests_whose_bodies_fit_into_memory(real_desk):
    # Given: room for a few of the bodies, and among them a request that is small
    client = real_desk.client
    names = [f"r{number}" for number in range(8)]
    bodies = [Submission(name, 60_000, wire_of(name, size=2_000_000)) for name in names]
    small = Submission("small", 60_000, wire_of("small", size=0))
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 9_000_000)

    # When
    asked = [*bodies[:4], small, *bodies[4:]]
    codes = real_desk.ingress().submit(asked)

    # Then those that fit wait, the others are refused and have left nothing behind. Not always the
    # first ones fit: what Redis is just reading counts as used, too.
    client.config_set("maxmemory", 0)
    queued = [name for name in names if real_desk.has_body(name)]
    assert 1 <= len(queued) <= 4
    assert set(real_desk.queued()) == {*queued, "small"}
    expected = {name: SubmitCode.NO_MEMORY for name in names}
    expected |= dict.fromkeys([*queued, "small"], SubmitCode.QUEUED)
    assert {one.request_id: code for one, code in zip(asked, codes, strict=True)} == expected


def test_submit_leaves_no_body_behind_when_only_one_would_fit(real_desk):
    # Given: room for the first body and not for the second
    client = real_desk.client
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 3_000_000)
    bodies = [Submission(name, 60_000, wire_of(name, size=2_000_000)) for name in ("a", "b", "c")]

    # When
    codes = real_desk.ingress().submit(bodies)

    # Then the one that filled the memory up has made room again
    client.config_set("maxmemory", 0)
    assert codes == [SubmitCode.NO_MEMORY] * 3
    assert [name for name in ("a", "b", "c") if real_desk.has_body(name)] == []
    assert real_desk.queued() == []
