"""One ingress's traffic: each reply reaches its own client, whatever happens to Redis."""

import asyncio
import dataclasses
import gc
import time
import uuid
import weakref

import pytest
import redis

from batching import errors
from batching.protocol import INLINE_LIMIT_BYTES, Wire
from batching.store.channel import SUBMIT_AT_ONCE, take_some
from batching.store.clients import connect_async
from batching.store.ingress_queue import IngressQueue
from batching.store.pending_request import AwaitedRequest, ClientLeft
from batching.store.scripts import loader as scripts
from tests.support import (
    KEY,
    QueueHarness,
    body_of,
    eventually_async,
    ids_of,
    items_of,
    make_reply,
    server_backend,
    wire_of,
)
from tests.timing import assert_within
from tests.unit.batching.store.channels import (
    CutOff,
    DeafRedis,
    FarRedis,
    HaltingRedis,
    NeverSubmitting,
    ask,
    open_channel,
    special,
    submit,
)

TIMEOUT_S = 10.0
LARGE = 4 * INLINE_LIMIT_BYTES


def answer(worker, limit=8, *, size=0):
    """A worker's turn: every request is answered with its own text in capitals."""
    claimed = worker.claim(limit, 0.0)
    replies = [make_reply(body_of(item.request).upper(), size=size) for item in claimed.items]
    worker.reply(items_of(claimed), replies)
    return ids_of(claimed)


async def queued(harness, count):
    await eventually_async(lambda: len(harness.queued()) == count)


async def accepted(harness, count):
    """As `queued`, where their deadline may pass before this has looked."""
    await eventually_async(lambda: harness.counters().get("accepted") == count)


# --- replies


async def test_channel_returns_each_reply_to_its_own_client(harness):
    async with open_channel(harness) as channel:
        # Given
        names = [f"r{number}" for number in range(40)]
        asked = [ask(channel, name) for name in names]
        await queued(harness, 40)

        # When: they are answered in pieces, by two workers
        workers = [harness.worker("worker-a"), harness.worker("worker-b")]
        for turn in range(5):
            answer(workers[turn % 2])

        # Then
        replies = await asyncio.gather(*asked)
        assert [reply.body.decode() for reply in replies] == [name.upper() for name in names]
        assert channel.waiting == 0
    assert harness.unaccounted() == 0


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole line", "connection lost"])
async def test_channel_fetches_a_large_reply_and_leaves_nothing_of_it(real_harness, is_cut):
    client = special(DeafRedis, real_harness.backend.url)
    async with open_channel(client, audit_s=0.05) as channel:
        # Given
        asked = ask(channel, "a")
        await queued(real_harness, 1)
        client.lost = (real_harness.keys.large_reply_prefix,) if is_cut else ()

        # When
        answer(real_harness.worker(), size=LARGE)
        reply = await asyncio.wait_for(asked, 2.0)

        # Then
        assert reply.body == b"A".ljust(LARGE, b".")
        name = real_harness.keys.large_reply_prefix + "a:1"
        await eventually_async(lambda: not real_harness.client.exists(name))


@pytest.mark.parametrize(
    "garbage",
    [b"", b"garbage", b"a", b"a\xc1", b"a\x80\x04\x95K.", b"b@1", b"a@\xff\xfe", b"a!nonsense"],
    ids=repr,
)
async def test_channel_answers_500_for_a_reply_that_cannot_be_read_and_no_other_client(
    real_harness, garbage
):
    async with open_channel(real_harness, audit_s=0.05) as channel:
        # Given
        is_waited_for = garbage.startswith(b"a@")  # a large reply that is not there
        timeout_s = 1.0 if is_waited_for else TIMEOUT_S
        hit, neighbour = ask(channel, "a", timeout_s=timeout_s), ask(channel, "b")
        await queued(real_harness, 2)
        worker = real_harness.worker()
        items = items_of(worker.claim(2, 0.0))

        # When
        real_harness.client.set(real_harness.keys.reply_prefix + "a", garbage, px=5000)
        real_harness.client.rpush(real_harness.keys.done_prefix + "ingress-a", b"a", b"\xff\xfe")
        real_harness.client.pexpire(real_harness.keys.done_prefix + "ingress-a", 60_000)
        outcome = (await asyncio.gather(hit, return_exceptions=True))[0]
        worker.reply(items[1:], [make_reply("B")])

        # Then
        if is_waited_for:
            assert isinstance(outcome, errors.DeadlineExceeded)
        else:
            is_error = isinstance(outcome, errors.InternalError)
            kind = outcome.type if is_error else outcome.error_type
            assert (outcome.status, kind) == (500, "InternalServerException")
            assert "garbage" not in str(outcome)
        assert (await asyncio.wait_for(neighbour, 2.0)).body == b"B"


async def test_channel_reads_for_a_client_that_comes_while_last_replies_are_discarded(real_harness):
    client = special(HaltingRedis, real_harness.backend.url)
    async with open_channel(client, audit_s=60.0, block_s=0.05) as channel:
        # Given
        client.halt("UNLINK")
        worker = real_harness.worker()
        first = ask(channel, "a")
        await queued(real_harness, 1)
        answer(worker)
        await first
        await asyncio.wait_for(client.has_arrived.wait(), 5.0)

        # When
        second = ask(channel, "b")
        await queued(real_harness, 1)
        client.may_go.set()
        answer(worker)

        # Then: without its audit's help
        assert (await asyncio.wait_for(second, 5.0)).body == b"B"


@pytest.mark.parametrize("timeout_s", [10.0, 100.0])
async def test_channel_keeps_nothing_of_a_request_that_was_answered(real_harness, timeout_s):
    name = str(uuid.uuid4())

    def kept():
        return [
            one
            for one in gc.get_objects()
            if type(one) is AwaitedRequest and one.request_id == name
        ]

    # Given a channel that would let go of it much later
    async with open_channel(real_harness) as channel:
        asked = ask(channel, name, timeout_s=timeout_s)
        await queued(real_harness, 1)

        # When
        await asyncio.to_thread(answer, real_harness.worker())
        await asked

        # Then: neither it nor its reply, which may be large
        await eventually_async(lambda: not kept())


# --- deadline and departure


@pytest.mark.parametrize(("timeout_s", "is_hanging"), [(0.05, False), (0.3, False), (0.3, True)])
async def test_channel_gives_up_at_the_deadline_and_takes_the_request_back(
    real_harness, timeout_s, is_hanging
):
    async with open_channel(real_harness) as channel:
        # Given
        started = time.monotonic()
        asked = ask(channel, "a", timeout_s=timeout_s)
        await accepted(real_harness, 1)
        if is_hanging:
            real_harness.client.client_pause(600, all=True)

        # When
        with pytest.raises(errors.DeadlineExceeded):
            await asked

        # Then
        took_s = time.monotonic() - started
        assert took_s >= timeout_s
        assert_within(took_s, timeout_s + (0.2 if is_hanging else 0.1))
        assert channel.waiting == 0
        # It may be told before Redis has heard of it
        await eventually_async(lambda: real_harness.counters().get("cancelled") == 1)
        assert real_harness.queued() == []
        assert real_harness.open_ids() == set()
    assert real_harness.unaccounted() == 0


async def test_channel_takes_a_request_back_by_a_connection_that_was_made_too_late(real_harness):
    client = special(HaltingRedis, real_harness.backend.url)
    async with open_channel(client) as channel:
        # Given
        client.halt(scripts.sha("cancel"))
        asked = [ask(channel, "a", timeout_s=0.5), ask(channel, "b", timeout_s=0.6)]
        await queued(real_harness, 2)

        # When its deadline passes before the cancellation could be sent
        for one in asked:
            with pytest.raises(errors.DeadlineExceeded):
                await one
        await client.has_arrived.wait()
        # And the next one's waits for it, as there is one call at a time
        assert real_harness.queued() == ["a", "b"]
        client.may_go.set()

        # Then
        await queued(real_harness, 0)
        assert real_harness.counters()["cancelled"] == 2


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["client left", "task cancelled"])
@pytest.mark.parametrize("is_submitted", [True, False], ids=["queued", "on its way"])
async def test_channel_cancels_a_request_when_its_client_left(
    real_harness, is_submitted, is_cancelled
):
    client = special(HaltingRedis, real_harness.backend.url)
    async with open_channel(client, submit_s=60.0) as channel:
        # Given
        if not is_submitted:
            client.halt("EVALSHA")
        request = submit(channel, "a", wire_of("a"))
        asked = asyncio.create_task(request.outcome())
        neighbour = ask(channel, "b")
        await (queued(real_harness, 2) if is_submitted else client.has_arrived.wait())

        # When
        if is_cancelled:
            asked.cancel()
        else:
            request.leave()
        with pytest.raises(asyncio.CancelledError if is_cancelled else ClientLeft):
            await asked
        if not is_submitted:
            client.may_go.set()

        # Then
        await eventually_async(lambda: real_harness.counters().get("cancelled") == 1)
        assert real_harness.queued() == ["b"]
        answer(real_harness.worker())
        assert (await neighbour).body == b"B"


async def test_channel_cancels_requests_of_clients_that_left_while_redis_was_away(cut_harness):
    harness, line = cut_harness

    async with open_channel(harness) as channel:
        # Given
        requests = [submit(channel, name, wire_of(name)) for name in "ab"]
        await queued(harness, 2)

        # When
        line.connected = False
        for request in requests:
            request.leave()
            with pytest.raises(ClientLeft):
                await request.outcome()
        line.connected = True

        # Then
        await queued(harness, 0)
        assert harness.counters()["cancelled"] == 2


async def test_channel_refuses_waiting_requests_when_it_is_closed(harness):
    async with open_channel(harness) as channel:
        # Given
        asked = ask(channel, "a")
        await queued(harness, 1)

        # When
        await channel.close()

        # Then
        with pytest.raises(errors.Draining):
            await asked


# --- refusals


@pytest.mark.parametrize(
    ("break_it", "error", "text"),
    [
        (
            lambda harness: harness.client.hset(harness.keys.config, "max_queue", 0),
            errors.QueueFull,
            'The queue of model "digits" is full.',
        ),
        (
            lambda harness: harness.silence_worker(),
            errors.NoWorker,
            'Model "digits" has no worker to serve inference request. Please use scale workers '
            "API to add workers.",
        ),
        (
            lambda harness: harness.client.delete(harness.keys.config),
            errors.VersionNotFound,
            "Model version: 1.0 does not exist for model: digits",
        ),
    ],
    ids=["full", "no worker", "no version"],
)
async def test_channel_refuses_with_the_reason(harness, break_it, error, text):
    # Given
    break_it(harness)
    # Only a request that was submitted again waits for a worker
    version_s = 0.2 if error is errors.VersionNotFound else 60.0
    async with open_channel(harness, version_s=version_s) as channel:
        # When
        with pytest.raises(error) as caught:
            await asyncio.wait_for(ask(channel, "a"), 5)

        # Then
        assert caught.value.message.startswith(text)
        assert channel.waiting == 0


async def test_channel_waits_for_a_beat_when_the_clock_of_redis_has_stepped_ahead(real_harness):
    async with open_channel(real_harness, beat_s=60, back_s=60) as channel:
        # Given a worker that served a moment ago
        served = ask(channel, "a")
        await queued(real_harness, 1)
        answer(real_harness.worker())
        await served
        # When all beats are an hour old
        real_harness.silence_worker(ms=3_600_000)
        moved_at = channel._moved_at
        asked = ask(channel, "b")
        await eventually_async(lambda: channel._moved_at > moved_at)
        # Then the next one is waited for
        real_harness.open()
        await queued(real_harness, 1)
        answer(real_harness.worker())
        assert (await asked).body == b"B"


async def test_channel_keeps_nothing_of_a_request_that_it_refused_while_redis_is_away(
    cut_harness,
):
    harness, line = cut_harness

    async with open_channel(harness) as channel:
        # Given
        line.connected = False

        async def refused():
            try:
                await ask(channel, "a")
            except errors.StoreUnavailable as error:
                return weakref.ref(error)

        # When: its traceback leads to the request's body
        error = await refused()

        # Then
        await eventually_async(lambda: gc.collect() is not None and error() is None, 10)
        assert not line.connected


@pytest.mark.parametrize("is_refused", [True, False], ids=["one was refused", "one waits"])
async def test_channel_waits_for_the_workers_next_beat_when_redis_was_away(cut_harness, is_refused):
    harness, line = cut_harness

    async with open_channel(harness, version_s=30.0, back_s=30.0) as channel:
        # Given: Redis was away for longer than a worker may be silent
        if is_refused:
            line.connected = False
            with pytest.raises(errors.StoreUnavailable):
                await ask(channel, "a")
        else:
            waiting = ask(channel, "a")
            await queued(harness, 1)
            line.connected = False
            await eventually_async(lambda: channel._was_away_at > 0)
        # And is back
        line.connected = True
        harness.silence_worker()
        asked = ask(channel, "b")
        await asyncio.wait({asked}, timeout=0.3)
        assert not asked.done()

        # When
        harness.open()

        # Then
        await queued(harness, 1 if is_refused else 2)
        answer(harness.worker())
        assert (await asked).body == b"B"
        assert is_refused or (await waiting).body == b"A"


@pytest.fixture
def cut_harness(redis_server, tmp_path):
    """A harness whose channels can be cut off from one server, and what does it."""
    backend = server_backend(redis_server.url)
    with CutOff(tmp_path / "line.sock", redis_server.socket_path) as line:
        harness = QueueHarness(
            dataclasses.replace(backend, connect_async=lambda: connect_async(line.url))
        )
        harness.open()
        yield harness, line
        line.connected = True
        harness.close()
    backend.client.close()


async def test_channel_says_within_a_second_that_redis_is_down(tmp_path):
    client = connect_async(f"unix://{tmp_path}/no_server.sock")
    async with open_channel(client) as channel:
        # Given: the second client comes while the first one's submit is being repeated
        started = time.monotonic()
        waits = []

        async def refused(name):
            asked_at = time.monotonic()
            with pytest.raises(errors.StoreUnavailable):
                await ask(channel, name)
            waits.append(time.monotonic() - asked_at)

        first = asyncio.create_task(refused("a"))
        await eventually_async(lambda: time.monotonic() - started > 0.1)

        # When
        await asyncio.gather(first, refused("b"))

        # Then
        assert len(waits) == 2
        assert_within(max(waits), 1.0)


@pytest.mark.parametrize(
    ("sizes", "turns"),
    [
        ([1] * (SUBMIT_AT_ONCE + 1), [SUBMIT_AT_ONCE, 1]),
        ([500, 500, 1], [2, 1]),
        ([1001, 1, 1001], [1, 1, 1]),
    ],
)
async def test_submit_brings_many_requests_or_many_bytes(sizes, turns):
    # Given
    pending = [AwaitedRequest("a") for _ in sizes]
    for request, size in zip(pending, sizes, strict=True):
        request.wire = Wire(bytes(size))
    # When / Then
    assert [len(take_some(pending, 1000)) for _ in turns] == turns
    assert pending == []


async def test_submit_is_given_up_although_an_error_came_at_the_same_moment(harness, monkeypatch):
    # Given a connection that breaks in the very moment in which the patience for it ends
    async def submit(*_):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise redis.ConnectionError("closed by server") from None

    monkeypatch.setattr(IngressQueue, "submit", submit)
    async with open_channel(harness, submit_s=0.1) as channel:
        # When
        with pytest.raises(errors.StoreUnavailable) as caught:
            await ask(channel, "a")
    # Then
    assert isinstance(caught.value.__cause__, redis.ConnectionError)


# --- losses


async def test_channel_submits_again_what_redis_lost(real_harness):
    async with open_channel(real_harness, audit_s=0.05, version_s=30.0) as channel:
        # Given: also a request older than the patience with an unknown version
        asked = [ask(channel, "a"), ask(channel, "b")]
        await queued(real_harness, 2)
        channel._waiting["a"].entered_at -= 60.0

        # When: nodes bring the registry back, then their workers
        real_harness.client.flushall()
        await eventually_async(lambda: real_harness.client.exists(real_harness.keys.ingress_beats))
        await asyncio.wait(asked, timeout=0.1)
        real_harness.client.hset(real_harness.keys.config, "max_queue", 100)
        await asyncio.wait(asked, timeout=0.1)
        real_harness.open()
        await queued(real_harness, 2)

        # Then: under new ids, so that a worker with the old ones answers no client
        names = real_harness.queued()
        assert not {"a", "b"} & set(names)
        # And with the old deadlines
        assert int(real_harness.request(names[0])["ttl_ms"]) <= 1000 * TIMEOUT_S - 50
        answer(real_harness.worker())
        assert [reply.body for reply in await asyncio.gather(*asked)] == [b"A", b"B"]


async def test_channel_waits_for_workers_when_redis_was_emptied_and_no_line_lost(real_harness):
    async with open_channel(real_harness, version_s=30.0, back_s=30.0) as channel:
        # Given a request that comes before the registry has been restored
        real_harness.client.flushall()
        early = ask(channel, "a")
        await asyncio.wait({early}, timeout=0.2)

        # When nodes bring the registry back, then their workers
        real_harness.client.hset(real_harness.keys.config, "max_queue", 100)
        late = ask(channel, "b")
        await asyncio.wait({early, late}, timeout=0.3)
        real_harness.open()

        # Then
        await queued(real_harness, 2)
        answer(real_harness.worker())
        assert {(await early).body, (await late).body} == {b"A", b"B"}


async def test_channel_refuses_a_lost_request_when_too_little_time_is_left(real_harness):
    async with open_channel(real_harness, audit_s=0.05, resubmit_share=1.0) as channel:
        # Given
        asked = ask(channel, "a")
        await queued(real_harness, 1)

        # When
        real_harness.client.flushall()

        # Then
        with pytest.raises(errors.QueueLost):
            await asyncio.wait_for(asked, 5.0)


def reply_unheard(harness):
    """A worker answers `a`, and no entry of the replies list says so."""
    [item] = items_of(harness.worker().claim(1, 0.0))
    with harness.client.pipeline(transaction=True) as pipe:
        pipe.delete(harness.keys.lease_prefix + "worker-a")
        pipe.hdel(harness.keys.open, "a")
        reply = item.request_id.encode() + make_reply("A").encode()
        pipe.set(harness.keys.reply_prefix + item.request_id, reply, px=60_000)
        pipe.execute()


@pytest.mark.parametrize("finds_it", ["audit", "deadline"])
async def test_channel_finds_a_reply_whose_entry_was_lost(real_harness, finds_it):
    # Given: a busy machine takes longer than the usual time for a cancellation
    times = {"audit_s": 60.0, "cancel_s": 5.0} if finds_it == "deadline" else {}
    async with open_channel(real_harness, **times) as channel:
        asked = ask(channel, "a", timeout_s=1.0 if finds_it == "deadline" else TIMEOUT_S)
        await queued(real_harness, 1)

        # When
        reply_unheard(real_harness)
        started = time.monotonic()

        # Then
        assert (await asked).body == b"A"
        assert_within(time.monotonic() - started, 1.2)


def failing_once(channel, verb):
    """Its next call of this verb fails in an unforeseen way."""
    queue = channel._queue
    call = getattr(queue, verb)

    async def fail(*_):
        setattr(queue, verb, call)
        raise RuntimeError("unforeseen")

    setattr(queue, verb, fail)


async def test_channel_tells_clients_at_once_of_a_submit_that_failed_unforeseen(harness, caplog):
    async with open_channel(harness) as channel:
        # Given
        failing_once(channel, "submit")
        # When
        lost = ask(channel, "a")
        # Then
        with pytest.raises(errors.InternalError, match="not passed on"):
            await asyncio.wait_for(lost, 2)
        served = ask(channel, "b")
        await queued(harness, 1)
        answer(harness.worker())
        assert (await served).body == b"B"
    assert "task failed name=_flush model=digits version=1.0" in caplog.text
    assert "unforeseen" in caplog.text


async def test_channel_answers_requests_for_a_version_that_was_unregistered_meanwhile(harness):
    async with open_channel(harness) as channel:
        # Given
        asked = [ask(channel, name) for name in ("a", "b")]
        await queued(harness, 2)
        harness.worker().claim(1, 0.0)
        # When it is unregistered, and its worker dies
        harness.registry().close_queue(KEY)
        harness.silence_worker()
        # Then
        for one in asked:
            with pytest.raises(errors.ModelNotFound, match="unregistered while"):
                await asyncio.wait_for(one, 5)
        await eventually_async(lambda: harness.open_ids() == set())
        assert harness.owned() == []
        assert harness.unaccounted() == 0


@pytest.mark.parametrize("retry_s", [0.05, 0.4], ids=["known", "answered meanwhile"])
async def test_channel_queues_once_when_the_answer_to_a_submit_was_lost(real_harness, retry_s):
    client = special(DeafRedis, real_harness.backend.url)
    async with open_channel(client, retry_s=retry_s) as channel:
        # Given
        client.lost = ("EVALSHA",)
        asked = ask(channel, "a")
        await queued(real_harness, 1)

        # When it comes again, before it is answered or afterwards
        if retry_s < 0.1:
            await eventually_async(lambda: channel._waiting["a"].is_queued)
            assert client.lost == ()
        answer(real_harness.worker())
        assert (await asked).body == b"A"
        await eventually_async(lambda: channel.is_idle)

        # Then
        assert real_harness.queued() == []
        assert real_harness.counters()["accepted"] == 1


@pytest.mark.parametrize("is_carried_out", [False, True])
@pytest.mark.parametrize("size", [0, LARGE])
async def test_channel_submits_once_what_gathered_while_a_submit_failed(
    real_harness, is_carried_out, size
):
    client = special(NeverSubmitting, real_harness.backend.url)
    client.is_carried_out = is_carried_out
    names = [f"r{number}" for number in range(9)]
    async with open_channel(client, submit_s=5.0) as channel:
        # Given a submit that fails again and again
        asked = [ask(channel, names[0], wire_of(names[0], size=size))]
        await eventually_async(lambda: client.refused >= 1)

        # When others come meanwhile, and then the line is whole
        asked += [ask(channel, name, wire_of(name, size=size)) for name in names[1:]]
        await eventually_async(lambda: client.refused >= 3)
        client.is_broken = False
        await queued(real_harness, 9)
        ran = answer(real_harness.worker(), 16)

        # Then
        assert sorted(ran) == names
        replies = await asyncio.gather(*asked)
        assert [reply.body.decode() for reply in replies] == [name.upper() for name in names]
        assert (real_harness.counters()["accepted"], real_harness.unaccounted()) == (9, 0)


@pytest.mark.parametrize("is_carried_out", [True, False])
async def test_channel_takes_back_what_it_gave_up_to_submit(real_harness, is_carried_out):
    client = special(NeverSubmitting, real_harness.backend.url)
    client.is_carried_out = is_carried_out
    async with open_channel(client) as channel:
        # When
        wire = wire_of("a", size=LARGE)
        with pytest.raises(errors.StoreUnavailable):
            await ask(channel, "a", wire)

        # Then: its client has been told, so it is not run, and its body fills no memory
        await eventually_async(lambda: not real_harness.has_body("a"))
        assert real_harness.queued() == []
        assert real_harness.counters().get("cancelled", 0) == int(is_carried_out)


async def test_channel_waits_for_large_bodies_while_they_move(real_harness):
    client = special(FarRedis, real_harness.backend.url)
    client.body_s = 0.3
    async with open_channel(client, submit_bytes=LARGE) as channel:
        # When: together they take longer than Redis may take to answer
        names = ["a", "b", "c", "d", "small"]
        wires = [wire_of(name, size=LARGE) for name in names[:4]] + [wire_of("small")]
        asked = [ask(channel, name, wire) for name, wire in zip(names, wires, strict=True)]
        await queued(real_harness, 5)

        # Then
        answer(real_harness.worker())
        assert [reply.status for reply in await asyncio.gather(*asked)] == [200] * 5


@pytest.mark.parametrize(("bytes_per_s", "is_served"), [(LARGE // 4, True), (100 * LARGE, False)])
async def test_channel_gives_a_large_body_time_for_its_way(real_harness, bytes_per_s, is_served):
    client = special(FarRedis, real_harness.backend.url)
    client.body_s = 1.2
    async with open_channel(client, bytes_per_s=bytes_per_s) as channel:
        asked = ask(channel, "a", wire_of("a", size=LARGE))
        if is_served:
            await queued(real_harness, 1)
            answer(real_harness.worker())
            assert (await asked).status == 200
        else:
            with pytest.raises(errors.StoreUnavailable):
                await asked
