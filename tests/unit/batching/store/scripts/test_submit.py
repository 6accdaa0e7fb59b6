import pytest
from redis.exceptions import OutOfMemoryError

from batching.protocol import INLINE_LIMIT_BYTES
from batching.store.ingress_queue import Submission, SubmitCode
from tests.support import body_of, eventually, make_request, wire_of

LARGE = 4 * INLINE_LIMIT_BYTES


def large(request_id):
    return Submission(request_id, 60_000, wire_of(request_id, size=LARGE))


def test_submit_records_each_request_with_its_ingress(harness):
    # When
    harness.submit("a", ingress_id="ingress-a")
    again = Submission("b", 5000, wire_of("b"), age_us=None)
    harness.ingress("ingress-b").submit([again, Submission("c", 5000, wire_of("c"), age_us=70)])

    # Then
    records = [harness.request(name) for name in "abc"]
    assert [record["ingress_id"] for record in records] == ["ingress-a", "ingress-b", "ingress-b"]
    assert [record["age_us"] for record in records] == ["0", "-", "70"]
    heads = [(record["attempts"], record["owner"], record["chunks"]) for record in records]
    assert heads == [("0", "-", "0")] * 3


def test_submit_refuses_when_the_version_is_not_registered(harness):
    # Given
    harness.client.delete(harness.keys.config)

    # When
    codes = harness.submit("a", "b")

    # Then
    assert codes == [SubmitCode.NO_VERSION, SubmitCode.NO_VERSION]
    assert harness.open_ids() == set()


def test_submit_tells_workers_that_have_left_from_silent_ones(harness):
    # When all are silent
    harness.silence_worker()

    # Then
    assert harness.submit("a") == [SubmitCode.NO_BEAT]

    # When all have left
    harness.client.delete(harness.keys.worker_beats)

    # Then
    assert harness.submit("a") == [SubmitCode.NO_WORKER]
    assert harness.queued() == []


@pytest.mark.parametrize(
    ("size", "has_own_key"),
    [(INLINE_LIMIT_BYTES, False), (INLINE_LIMIT_BYTES + 1, True)],
)
def test_submit_carries_bodies_of_any_size_to_the_worker(harness, size, has_own_key):
    # Given
    padding = wire_of("hello", size=size).size_bytes - size
    wire = wire_of("hello", size=size - padding)
    assert wire.size_bytes == size

    # When
    harness.ingress().submit([Submission("a", 60_000, wire)])

    # Then
    assert harness.has_body("a") == has_own_key
    assert bool(harness.request("a")["wire"]) != has_own_key
    claimed = harness.worker().claim(1, 0.0)
    assert claimed.items[0].request.to_wire() == wire
    assert body_of(claimed.items[0].request) == "hello"


@pytest.mark.parametrize("refusal", ["full", "no version", "no worker"])
def test_submit_leaves_no_body_behind_when_the_request_is_refused(harness, refusal):
    # Given
    if refusal == "full":
        harness.client.hset(harness.keys.config, "max_queue", 1)
        harness.submit("first")
    elif refusal == "no version":
        harness.client.delete(harness.keys.config)
    else:
        harness.silence_worker()

    # When
    codes = harness.ingress().submit([large("a"), large("b")])

    # Then
    assert max(codes) <= 0
    assert not harness.has_body("a")
    assert not harness.has_body("b")


@pytest.mark.parametrize(
    ("ttl_ms", "left_ms", "expected_ms"),
    [
        (10_000, 70_500, 70_500),  # enough: one command less
        (10_000, 69_500, 130_000),
        (10_000, 600_000, 600_000),  # others live longer
    ],
)
def test_submit_keeps_all_open_requests_as_long_as_the_longest_lived(
    harness, ttl_ms, left_ms, expected_ms
):
    # Given
    harness.submit("before")
    harness.client.pexpire(harness.keys.open, left_ms)

    # When
    harness.submit("a", ttl_ms=ttl_ms)

    # Then
    assert expected_ms - 500 < harness.client.pttl(harness.keys.open) <= expected_ms


@pytest.mark.parametrize("size", [0, LARGE])
def test_submit_is_refused_whole_when_memory_is_full(real_harness, full_memory, size):
    # Given
    real_harness.submit("before")
    full_memory()
    submissions = [Submission(name, 60_000, wire_of(name, size=size)) for name in ("a", "b")]

    # When: a large body is refused by itself, small ones with the script that carries them
    if size:
        assert real_harness.ingress().submit(submissions) == [SubmitCode.NO_MEMORY] * 2
    else:
        with pytest.raises(OutOfMemoryError):
            real_harness.ingress().submit(submissions)

    # Then
    assert real_harness.queued() == ["before"]
    assert real_harness.open_ids() == {"before"}
    assert real_harness.counters() == {"accepted": 1}
    assert real_harness.request("a") == {}


def test_submit_wakes_one_worker_or_the_collector_of_a_full_batch(harness):
    # When the queue stops being empty
    harness.submit("a")
    harness.submit("b")

    # Then
    assert harness.wakeups() == 1

    # When
    harness.worker().claim(4, 60.0)
    harness.client.delete(harness.keys.wakeups)
    harness.submit("c")
    tokens_when_partial = harness.more_tokens()
    harness.submit("d")
    harness.submit("e")

    # Then
    assert tokens_when_partial == 0
    assert harness.more_tokens() == 1
    assert harness.wakeups() == 0


@pytest.mark.parametrize(
    ("room", "sizes", "queued"),
    [
        (2_500_000, [2_000_000, 2_000_000, 2_000_000], ""),  # for the first one alone
        (4_000_000, [LARGE, 2_500_000, LARGE], "ac"),  # not for the buffer with the next one
        (4_000_000, [3_900_000, 0], "b"),  # and none for the script after the body
    ],
    ids=["one", "all but one", "no script"],
)
def test_submit_refuses_only_requests_whose_bodies_found_no_room(real_harness, room, sizes, queued):
    # Given: so much room, once earlier bodies are freed
    client = real_harness.client
    eventually(lambda: client.info("memory")["lazyfree_pending_objects"] == 0)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + room)
    wires = {name: wire_of(name, size=size) for name, size in zip("abc", sizes, strict=False)}
    ingress = real_harness.ingress()

    # When
    codes = ingress.submit([Submission(name, 10_000, wire) for name, wire in wires.items()])

    # Then
    client.config_set("maxmemory", 0)
    code_of = {True: SubmitCode.QUEUED, False: SubmitCode.NO_MEMORY}
    assert codes == [code_of[name in queued] for name in wires]
    assert real_harness.queued() == list(queued)
    bodies = [name for name in wires if real_harness.has_body(name)]
    assert bodies == [name for name in queued if wires[name].body]
    for name in bodies:
        assert 69_000 < client.pttl(real_harness.keys.body_prefix + name) <= 70_000


def test_submit_sends_bodies_once_when_the_server_has_forgotten_the_script(real_harness):
    # Given
    server = real_harness.server()
    server.script_flush()
    server.config_resetstat()

    # When
    codes = real_harness.ingress().submit([large("a"), large("b")])

    # Then
    assert codes == [SubmitCode.QUEUED] * 2
    assert server.info("commandstats")["cmdstat_set"]["calls"] == 2
    assert real_harness.worker().claim(2, 0.0).items[0].request == make_request("a", size=LARGE)
