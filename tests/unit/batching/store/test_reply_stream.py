"""An answer in pieces, as the ingress reads it: each piece once, in order, or a definite error."""

import asyncio
import time

import pytest
from msgspec.structs import replace

from batching import errors
from batching.protocol import ReplyChunk
from batching.store.node_queue import ReclaimMode
from batching.store.pending_request import ReplyStream
from tests.support import KEY, eventually_async, items_of, make_reply
from tests.timing import assert_within
from tests.unit.batching.store.channels import DeafRedis, ask, open_channel, special

TIMEOUT_S = 10.0
PATIENCE_S = 5.0


class Conversation:
    """One request, claimed by one worker, and the client that waits for its answer."""

    def __init__(self, harness, channel, worker, asked, items):
        self.harness = harness
        self.channel = channel
        self.worker = worker
        self.asked = asked
        self.items = items
        self.sent = 0

    @classmethod
    async def begin(cls, harness, channel, *, timeout_s=TIMEOUT_S):
        asked = ask(channel, "a", timeout_s=timeout_s)
        await eventually_async(lambda: harness.queued() == ["a"])
        worker = harness.worker()
        return cls(harness, channel, worker, asked, items_of(worker.claim(1, 0.0)))

    def send(self, *texts):
        for text in texts:
            chunk = ReplyChunk(self.sent, text.encode(), 201, {"x-piece": "yes"})
            self.worker.send(self.items, [chunk], PATIENCE_S)
            self.sent += 1

    def end(self, text="", **fields):
        reply = replace(make_reply(text), chunks=self.sent, **fields)
        self.worker.reply(self.items, [reply])


async def rest_of(stream):
    return [piece.decode() async for piece in stream]


async def test_stream_brings_each_piece_as_it_comes(harness):
    async with open_channel(harness) as channel:
        # Given
        talk = await Conversation.begin(harness, channel)
        talk.send("one")

        # When
        stream = await talk.asked

        # Then
        assert isinstance(stream, ReplyStream)
        first = await stream.first()
        assert (first.status, first.headers) == (201, {"x-piece": "yes"})
        assert await anext(stream) == b"one"
        for text in ("two", "three"):
            waiting = asyncio.create_task(anext(stream))
            talk.send(text)
            assert await waiting == text.encode()
        assert channel.waiting == 1
        talk.end("last")
        assert await rest_of(stream) == ["last"]
        await stream.close()
        assert channel.waiting == 0
    assert harness.unaccounted() == 0
    assert not harness.client.exists(harness.keys.chunk_prefix + "a")


LOST = ("internal_error", "rest of the answer")
ENDS = {"error": LOST, "crash": ("worker_crashed", "Worker died"), "gap": LOST, "garbage": LOST}


@pytest.mark.parametrize("end", ENDS)
async def test_stream_that_has_no_end_raises(harness, end):
    async with open_channel(harness) as channel:
        # Given
        talk = await Conversation.begin(harness, channel)
        talk.send("one")
        stream = await talk.asked
        assert await anext(stream) == b"one"

        # When
        if end == "error":
            talk.end("it failed", error_type="InternalServerException")
        elif end == "crash":
            node = harness.node()
            await asyncio.to_thread(node.reclaim, KEY, "worker-a", ReclaimMode.CRASHED)
        elif end == "gap":
            talk.sent += 1
            talk.end("the end")
        else:
            harness.client.rpush(harness.keys.chunk_prefix + "a", b"\xc1 no piece")
            stream.poke()

        # Then
        reason, text = ENDS[end]
        with pytest.raises(errors.InternalError, match=text) as raised:
            await anext(stream)
        assert raised.value.reason == reason
        await stream.close()


async def test_stream_survives_lost_answers_of_redis(real_harness):
    client = special(DeafRedis, real_harness.backend.url)
    async with open_channel(client) as channel:
        # Given
        talk = await Conversation.begin(real_harness, channel)
        talk.send("one")
        stream = await talk.asked
        assert await anext(stream) == b"one"
        talk.send("two", "three")

        # When: what was trimmed is not known
        real_harness.client.client_kill_filter(_type="normal", skipme=True)
        assert await anext(stream) == b"two"
        real_harness.client.client_kill_filter(_type="normal", skipme=True)
        talk.end("end")

        # Then
        assert await rest_of(stream) == ["three", "end"]
        await stream.close()


async def test_stream_goes_on_when_its_entry_was_lost(harness):
    async with open_channel(harness, audit_s=0.05) as channel:
        # Given a piece without an entry in the replies list
        talk = await Conversation.begin(harness, channel)
        done = harness.keys.done_prefix + "ingress-a"
        await eventually_async(lambda: send_unheard(talk, done))

        # When / Then
        stream = await talk.asked
        assert await anext(stream) == b"unheard"
        talk.end("end")
        assert (await rest_of(stream))[-1] == "end"
        await stream.close()


def send_unheard(talk, done):
    talk.harness.change_request("a", chunks=1)
    with talk.harness.client.pipeline(transaction=True) as pipe:
        chunk = ReplyChunk(0, b"unheard")
        pipe.rpush(talk.harness.keys.chunk_prefix + "a", chunk.encode())
        pipe.pexpire(talk.harness.keys.chunk_prefix + "a", 60_000)
        pipe.execute()
    talk.sent = 1
    return not talk.harness.client.exists(done)


@pytest.mark.parametrize("is_whole", [False, True])
async def test_stream_that_is_closed_cancels_its_request_and_leaves_nothing(harness, is_whole):
    async with open_channel(harness) as channel:
        # Given a client that is not done
        talk = await Conversation.begin(harness, channel)
        talk.send("one", "two")
        if is_whole:
            talk.end("end")
        stream = await talk.asked
        assert await anext(stream) == b"one"

        # When
        await stream.close()

        # Then
        await eventually_async(lambda: harness.open_ids() == set())
        assert not harness.client.exists(harness.keys.chunk_prefix + "a")
        assert channel.waiting == 0
    assert harness.counters().get("cancelled", 0) == int(not is_whole)
    assert harness.unaccounted() == 0
    assert harness.leased() == []


async def test_stream_that_redis_lost_is_not_submitted_again(harness):
    async with open_channel(harness, audit_s=0.05) as channel:
        # Given
        talk = await Conversation.begin(harness, channel)
        talk.send("one")
        stream = await talk.asked
        assert await anext(stream) == b"one"

        # When
        harness.client.flushall()

        # Then
        with pytest.raises(errors.QueueLost):
            await anext(stream)
        await stream.close()
        assert not channel._resubmitted
        assert harness.queued() == []


@pytest.mark.parametrize("is_client_slow", [False, True], ids=["slow model", "slow client"])
async def test_stream_has_its_time_again_with_each_piece(harness, is_client_slow):
    async with open_channel(harness) as channel:
        # Given: pieces of a slow model come one by one, those for a slow client are read at once
        talk = await Conversation.begin(harness, channel, timeout_s=1.0)
        talk.send(*("12345" if is_client_slow else "1"))
        stream = await talk.asked

        # When: longer in all than the request may wait
        for _ in range(4):
            await anext(stream)
            came_s = time.monotonic()
            await asyncio.sleep(0.3)  # the time under test
            assert_within(time.monotonic() - came_s, 0.6)
            if not is_client_slow:
                talk.send("more")
        await anext(stream)

        # Then: but no longer than that at once
        with pytest.raises(errors.DeadlineExceeded):
            await anext(stream)
        await stream.close()
    assert harness.unaccounted() == 0


async def test_stream_gives_up_when_redis_stays_away(real_harness):
    async with open_channel(real_harness, read_s=0.1) as channel:
        # Given
        talk = await Conversation.begin(real_harness, channel)
        talk.send("one")
        stream = await talk.asked
        assert await anext(stream) == b"one"

        # When: its list has become something that cannot be read
        name = real_harness.keys.chunk_prefix + "a"
        real_harness.client.delete(name)
        real_harness.client.set(name, "text", px=60_000)
        stream.poke()

        # Then
        with pytest.raises(errors.StoreUnavailable):
            await anext(stream)
        await stream.close()
