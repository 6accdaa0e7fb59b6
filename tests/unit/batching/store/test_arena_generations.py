"""A slot is its body's while a request needs it, and no longer; then a reader notices."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import uuid

import pytest

from batching import errors
from batching.protocol import Part, Request
from batching.store.arena import GENERATION_BYTES, UNIT_BYTES, Arena, ArenaReader
from batching.store.channel import Channel
from batching.store.ingress_queue import USUAL_PATIENCE, IngressQueue
from tests.support import (
    DEAD_AFTER_MS,
    KEY,
    eventually_async,
    items_of,
    make_outage,
    make_reply,
)
from tests.unit.batching.store.channels import NeverSubmitting, special, submit

ROOMS = 8  # of the largest size
ROOM_BYTES = 4 * UNIT_BYTES

WRITER = """
import itertools, sys, uuid
from pathlib import Path
from batching import errors
from batching.protocol import Part, Request
from batching.store.arena import Arena

arena = Arena(Path(sys.argv[1]), 128 << 20, uuid.uuid4().hex)
bodies = [bytes([number]) * 4_000_000 for number in range(200)]
held = None
for number in itertools.cycle(range(200)):
    held = None  # the next body gets the same slot
    request = Request({"number": str(number)}, [Part("body", "", bodies[number])])
    held, record = arena.carry(request.to_wire())
    print(record.head.hex(), flush=True)
"""


@pytest.fixture
def arena(tmp_path):
    units = ROOMS * ROOM_BYTES // UNIT_BYTES
    opened = Arena(tmp_path, units * (UNIT_BYTES + GENERATION_BYTES), uuid.uuid4().hex)
    yield opened
    opened.close()


def free_rooms(arena):
    """How many bodies of the largest size there is room for."""
    rooms = [arena.room(ROOM_BYTES) for _ in range(ROOMS)]
    return sum(room is not None for room in rooms)


def test_copy_into_which_the_next_body_is_written_is_given_up(tmp_path):
    # Given an ingress that writes one body after the other into the same slot
    reader, gone, seen = ArenaReader(tmp_path), 0, set()
    words = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        try:
            # When a worker copies each, over and over, until it has gone
            while gone < 100 or len(seen) < 20:
                record = bytes.fromhex(writer.stdout.readline())
                while (request := reader.read(record)) is not None:
                    # Then all of what it has is this body's
                    number = int(request.headers["number"])
                    content = request.parts[-1].content
                    assert content.count(number) == len(content)
                    seen.add(number)
                gone += 1
        finally:
            writer.kill()


def test_slot_is_its_bodys_until_nobody_needs_the_request(arena, tmp_path):
    # Given
    body = b"a" * ROOM_BYTES
    held, record = arena.carry(Request({}, [Part("body", "", body)]).to_wire())
    # When
    others = [arena.room(ROOM_BYTES) for _ in range(ROOMS)]
    for room in others[:-1]:
        room[:] = b"b" * ROOM_BYTES
    # Then
    assert others[-1] is None
    assert bytes(ArenaReader(tmp_path).read(record.head).parts[-1].content) == body
    # When
    del held, others, room
    # Then
    assert free_rooms(arena) == ROOMS


@contextlib.asynccontextmanager
async def open_channel(client, arena):
    queue = IngressQueue(client, KEY, "ingress-a", DEAD_AFTER_MS)
    channel = Channel(KEY, queue, make_outage(), USUAL_PATIENCE, arena)
    try:
        yield channel
    finally:
        await channel.close()
        await client.aclose()


def ask(channel, arena):
    """A request whose body was read into a slot."""
    room = arena.room(ROOM_BYTES)
    room[:] = b"a" * ROOM_BYTES
    request = Request({}, [Part("body", "", room)])
    return submit(channel, uuid.uuid4().hex, request.to_wire())


async def goes_by(way, channel, arena):
    """Waits until a body takes this way."""
    async with asyncio.timeout(10):
        while await way_of_the_next(channel, arena) != way:
            pass


async def way_of_the_next(channel, arena):
    before = dict(arena.carried)
    request = ask(channel, arena)
    await eventually_async(lambda: arena.carried != before)
    request.leave()
    [way] = [way for way, count in arena.carried.items() if count != before[way]]
    return way


async def test_worker_that_shares_no_memory_has_all_bodies_go_by_redis(real_harness, arena):
    async with open_channel(real_harness.backend.connect_async(), arena) as channel:
        # Given workers that share it
        client, beats = real_harness.client, real_harness.keys.worker_beats
        now_ms = client.zscore(beats, "worker-a")
        client.zadd(beats, {f"worker-b{arena.mark}": now_ms})
        client.zrem(beats, "worker-a")
        waiting = ask(channel, arena)
        await goes_by("arena", channel, arena)
        # When
        client.zadd(beats, {"worker-c": now_ms})
        # Then
        await goes_by("redis", channel, arena)
        assert {await way_of_the_next(channel, arena) for _ in range(3)} == {"redis"}
        waiting.leave()


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_submit_whose_answer_was_lost_keeps_no_slot(real_harness, arena):
    client = special(NeverSubmitting, real_harness.backend.url)
    async with open_channel(client, arena) as channel:
        # Given a submit that is sent again and again
        request = ask(channel, arena)
        await eventually_async(lambda: arena.carried["redis"] > 2)
        client.is_broken = False
        await eventually_async(real_harness.queued)
        worker = real_harness.worker()
        worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
        # When
        assert (await request.outcome()).body == b"A"
        # Then
        client.written = ()
        await eventually_async(lambda: free_rooms(arena) == ROOMS)


@pytest.mark.usefixtures("no_collector")
async def test_submit_that_found_no_memory_keeps_no_slot(real_harness, arena, full_memory):
    async with open_channel(real_harness.backend.connect_async(), arena) as channel:
        # When
        full_memory()
        with pytest.raises(errors.QueueMemoryFull):
            await ask(channel, arena).outcome()
        # Then
        await eventually_async(lambda: free_rooms(arena) == ROOMS)
