"""A slot is its body's while a request needs it, and no longer; then a reader notices."""

import asyncio
import gc
import subprocess
import sys
import uuid

import pytest

from batching import errors
from batching.protocol import Part, Request
from batching.store.arena import GENERATION_BYTES, UNIT_BYTES, ArenaReader, IngressMemory
from tests.support import eventually_async, items_of, make_reply
from tests.unit.batching.store.channels import NeverSubmitting, open_channel, special, submit

ROOMS = 8  # of the largest size
ROOM_BYTES = 4 * UNIT_BYTES
WRITTEN_BYTES = 4_000_000
WHOLE = 10

WRITER = """
import itertools, sys
from pathlib import Path
from batching.store.arena import Arena

folder, size_bytes = sys.argv[1:]
arena = Arena(Path(folder), 128 << 20)
bodies = [bytes([number]) * int(size_bytes) for number in range(200)]
for number in itertools.cycle(range(200)):
    held = None  # the next body gets the same slot
    held, place = arena.hold(bodies[number])
    print(number, place.decode(), end="", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def memory(tmp_path):
    units = ROOMS * ROOM_BYTES // UNIT_BYTES
    made = IngressMemory(tmp_path, units * (UNIT_BYTES + GENERATION_BYTES))
    yield made
    made.arena.close()


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def copied(reader, place):
    return reader.copy(place, owner_has_to_live=True)[0]


def free_rooms(arena):
    """How many bodies of the largest size there is room for."""
    rooms = [arena.room(ROOM_BYTES) for _ in range(ROOMS)]
    return sum(room is not None for room in rooms)


def test_copy_into_which_the_next_body_is_written_is_given_up(tmp_path):
    # Given an ingress that writes one body after the other into the same slot
    reader, whole, gone = ArenaReader(tmp_path), 0, 0
    words = [sys.executable, "-c", WRITER, str(tmp_path), str(WRITTEN_BYTES)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        try:
            for turn in range(200):
                number, _, place = writer.stdout.readline().partition(b" ")

                # When a worker copies one, and meanwhile, but for the first turns, the next comes
                if turn < WHOLE:
                    body = copied(reader, place)
                writer.stdin.write(b"\n")
                writer.stdin.flush()
                if turn >= WHOLE:
                    body = copied(reader, place)

                # Then all of what it has is this body's
                gone += body is None
                if body is not None:
                    assert body.count(int(number)) == len(body) == WRITTEN_BYTES
                    whole += 1
        finally:
            writer.kill()
    assert whole >= WHOLE
    assert gone > 0


def test_slot_is_its_bodys_until_nobody_needs_it(memory, tmp_path):
    # Given
    arena, body = memory.arena, b"a" * ROOM_BYTES
    held, place = arena.hold(body)
    # When
    others = [arena.room(ROOM_BYTES) for _ in range(ROOMS)]
    for room in others[:-1]:
        room[:] = b"b" * ROOM_BYTES
    # Then
    assert others[-1] is None
    assert copied(ArenaReader(tmp_path), place) == body
    # When
    del held, others, room
    # Then
    assert free_rooms(arena) == ROOMS


def ask(channel, memory):
    """A request whose body was received in a slot."""
    room = memory.arena.room(ROOM_BYTES)
    room[:] = b"a" * ROOM_BYTES
    request = Request({}, [Part("body", "", room)])
    return submit(channel, uuid.uuid4().hex, request.to_wire())


async def way_of_the_next(channel, memory):
    before = dict(memory.requests)
    request = ask(channel, memory)
    await eventually_async(lambda: memory.requests != before)
    request.leave()
    [way] = [way for way, count in memory.requests.items() if count != before[way]]
    return way


async def goes_by(way, channel, memory):
    """Waits until a body takes this way."""
    async with asyncio.timeout(10):
        while await way_of_the_next(channel, memory) != way:
            pass


async def test_worker_that_shares_no_memory_has_all_bodies_go_by_redis(real_harness, memory):
    async with open_channel(real_harness, memory=memory) as channel:
        # Given workers that share it
        client, beats = real_harness.client, real_harness.keys.worker_beats
        now_ms = client.zscore(beats, "worker-a")
        client.zadd(beats, {f"worker-b{memory.arena.mark}": now_ms})
        client.zrem(beats, "worker-a")
        waiting = ask(channel, memory)
        await goes_by("arena", channel, memory)
        # When
        client.zadd(beats, {"worker-c": now_ms})
        # Then
        await goes_by("redis", channel, memory)
        assert {await way_of_the_next(channel, memory) for _ in range(3)} == {"redis"}
        waiting.leave()


@pytest.mark.usefixtures("no_collector")
async def test_submit_whose_answer_was_lost_keeps_no_slot(real_harness, memory):
    client = special(NeverSubmitting, real_harness.backend.url)
    async with open_channel(client, memory=memory) as channel:
        # Given a submit that is sent again and again
        request = ask(channel, memory)
        await eventually_async(lambda: memory.requests["redis"] > 2)
        client.is_broken = False
        await eventually_async(real_harness.queued)
        worker = real_harness.worker()
        worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
        # When
        assert (await request.outcome()).body == b"A"

        # Then
        def is_all_free():
            client.written = ()  # a last try may be on its way
            return free_rooms(memory.arena) == ROOMS

        await eventually_async(is_all_free)


@pytest.mark.usefixtures("no_collector")
async def test_submit_that_found_no_memory_keeps_no_slot(real_harness, memory, full_memory):
    async with open_channel(real_harness, memory=memory) as channel:
        # When
        full_memory()
        with pytest.raises(errors.QueueMemoryFull):
            await ask(channel, memory).outcome()
        # Then
        await eventually_async(lambda: free_rooms(memory.arena) == ROOMS)
