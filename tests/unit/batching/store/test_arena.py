"""Bodies in shared memory: whoever reads one gets all of it, or is told that it has gone."""

import asyncio
import contextlib
import errno
import logging
import os
import subprocess
import sys
import time

import pytest

from batching.errors import QueueLost
from batching.protocol import INLINE_LIMIT_BYTES, Batch, Part, Request
from batching.store.arena import (
    GENERATION_BYTES,
    UNIT_BYTES,
    Arena,
    ArenaReader,
    Elsewhere,
    IngressMemory,
    mark_of,
    remove_abandoned,
)
from batching.store.ingress_queue import Submission
from batching.store.records import AnswerGone, decode_reply
from tests.support import body_of, eventually_async, items_of, make_reply, wire_of
from tests.unit.batching.store.channels import ask, open_channel

SIZE_BYTES = 64 * (UNIT_BYTES + GENERATION_BYTES)
LARGE = 3 * UNIT_BYTES - 100
SMALL = 0


@pytest.fixture
def arena(tmp_path):
    opened = make_arena(tmp_path)
    yield opened
    opened.close()


def make_arena(folder, size_bytes=SIZE_BYTES):
    return Arena(folder, size_bytes)


def carried(arena, content, *others):
    """What is held of a request whose last part has this content, and its record."""
    parts = [*others, Part("body", "image/jpeg", content)]
    wire = Request({"accept": "*/*"}, parts).to_wire()
    held, place = arena.hold(wire.body)
    return held, place + wire.without_body()


def request_of(reader, record):
    """The request of this record; None if it must not be run."""
    body, rest = reader.copy(record, owner_has_to_live=True)
    return None if body is None else Request.with_body(rest, body)


def content_of(request):
    return bytes(request.parts[-1].content)


# --- there and back


def test_worker_reads_what_the_client_sent_into_the_slot(arena, tmp_path):
    room = arena.room(LARGE)
    room[:] = b"r" * LARGE

    # When
    held, record = carried(arena, room, Part("first", "", b"1"))
    request = request_of(ArenaReader(tmp_path), record)

    # Then it was not copied by the ingress, and hardly anything is left for Redis
    assert held.obj is room.obj
    assert len(record) < 200
    assert request.headers == {"accept": "*/*"}
    assert [(part.name, part.content_type) for part in request.parts] == [
        ("first", ""),
        ("body", "image/jpeg"),
    ]
    assert content_of(request) == b"r" * LARGE


@pytest.mark.parametrize(
    "parts",
    [
        [Part("body", "", b"b" * LARGE)],
        [Part("a", "", b"a" * LARGE), Part("b", "", b"b")],
        [Part("a", "", b"a" * LARGE), Part("b", "", b"b" * LARGE)],
    ],
    ids=["last part", "not the last part", "both"],
)
def test_body_that_came_elsewhere_is_copied_into_a_slot(arena, tmp_path, parts):
    wire = Request({}, parts).to_wire()
    held, place = arena.hold(wire.body)

    request = request_of(ArenaReader(tmp_path), place + wire.without_body())

    assert [(p.name, bytes(p.content)) for p in request.parts] == [
        (p.name, p.content) for p in parts
    ]
    # And once more, as after a submit that failed, it stays where it is.
    again, same_place = arena.hold(held)
    assert (again.obj, same_place) == (held.obj, place)


# --- whose a slot is


def test_slot_is_given_away_when_nothing_refers_to_its_body(arena):
    rooms = [arena.room(8 * UNIT_BYTES) for _ in range(8)]
    assert arena.room(8 * UNIT_BYTES) is None

    # When one body is needed by nobody, but a part of another by a transport that still sends it
    part = rooms[3][100:200]
    del rooms[2:4]

    # Then
    again = arena.room(8 * UNIT_BYTES)
    assert again is not None
    assert arena.room(8 * UNIT_BYTES) is None
    del part
    assert arena.room(8 * UNIT_BYTES) is not None


def test_body_whose_slot_another_one_got_is_noticed(arena, tmp_path):
    reader = ArenaReader(tmp_path)
    held, record = carried(arena, b"a" * LARGE)
    assert content_of(request_of(reader, record)) == b"a" * LARGE

    # When its client leaves, and others come: one in the same place, one across its end
    del held
    other, _ = carried(arena, b"b" * LARGE)
    assert request_of(reader, record) is None
    del other
    small, _ = carried(arena, b"c" * (LARGE // 2))

    # Then
    assert request_of(reader, record) is None
    del small


WRITER = """
import sys
from pathlib import Path
from batching.protocol import Part, Request
from batching.store.arena import Arena

arena = Arena(Path(sys.argv[1]), 128 << 20)
wire = Request({}, [Part("b", "", b"a" * 100_000)]).to_wire()
held, place = arena.hold(wire.body)
print((place + wire.without_body()).hex(), flush=True)
sys.stdin.read()
"""


def test_body_of_an_ingress_that_died_is_not_run(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **streams) as writer:
        record = bytes.fromhex(writer.stdout.readline())
        reader = ArenaReader(tmp_path)
        assert request_of(reader, record) is not None
        writer.kill()
    # Then it is noticed soon, and by those who never saw that ingress at once
    assert request_of(ArenaReader(tmp_path), record) is None
    end_s = time.monotonic() + 10
    while request_of(reader, record) is not None:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert request_of(reader, record) is None

    # And the next start leaves nothing of it
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- where there is none


def test_full_arena_leaves_bodies_to_redis(arena):
    body = bytes(8 * UNIT_BYTES - 100)
    rooms = [arena.room(8 * UNIT_BYTES) for _ in range(8)]
    assert arena.hold(body) is None
    del rooms
    assert arena.hold(body) is not None


@pytest.mark.parametrize("size", [INLINE_LIMIT_BYTES, 9 * UNIT_BYTES])
def test_bodies_that_are_small_or_huge_get_no_slot(arena, size):
    assert arena.room(size) is None


def test_memory_that_the_system_does_not_have_leaves_bodies_to_redis(arena, monkeypatch):
    first = arena.room(LARGE)

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert arena.room(LARGE) is None
    del first
    assert arena.room(LARGE) is not None  # has had its memory before


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_folder_that_cannot_be_used_leaves_bodies_to_redis(tmp_path, folder, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        arena = make_arena(tmp_path / folder)
    assert arena.room(LARGE) is None
    assert not arena.is_shared_by([b"worker-a"])
    assert not arena.is_shared_by([])


def test_arena_that_nobody_uses_takes_no_memory(tmp_path):
    arena = make_arena(tmp_path, 128 * 1024 * 1024)
    [path] = tmp_path.iterdir()
    assert path.stat().st_blocks * 512 <= 128 * 1024
    arena.close()
    assert list(tmp_path.iterdir()) == []


# --- who shares it


def test_worker_shares_memory_if_its_id_says_so(arena, tmp_path):
    (tmp_path / "other").mkdir()
    here = mark_of(tmp_path, SIZE_BYTES).encode()
    there = mark_of(tmp_path / "other", SIZE_BYTES).encode()

    assert arena.is_shared_by([b"a-1" + here, b"b-7" + here])
    assert not arena.is_shared_by([b"a-1" + here, b"b-7" + there])
    assert not arena.is_shared_by([b"a-1" + here, b"of an older release"])
    assert mark_of(tmp_path, 0) == ""


@pytest.mark.parametrize("change", ["link", "mode", "name", "beyond", "garbage", "elsewhere"])
def test_what_is_no_arena_of_ours_is_not_read(arena, tmp_path, change):
    held, record = carried(arena, b"a" * LARGE)
    [path] = tmp_path.iterdir()
    folder = tmp_path
    if change == "link":
        path.rename(tmp_path / "target")
        path.symlink_to(tmp_path / "target")
    elif change == "mode":
        path.chmod(0o644)
    elif change == "name":
        record = record.replace(record[:32], b"../../../../etc/passwd__________")
    elif change == "beyond":
        record = record.replace(b" 0 ", b" 63 ", 1)
    elif change == "garbage":
        record = b"@" + record
    else:
        folder = tmp_path / "elsewhere"

    with pytest.raises(Elsewhere):
        request_of(ArenaReader(folder), record)
    del held


def test_only_what_an_ingress_left_is_removed(arena, tmp_path):
    left = tmp_path / ("ferry-arena-" + "0" * 32)
    left.write_bytes(b"")
    left.chmod(0o600)
    (tmp_path / "others").write_text("")

    remove_abandoned(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {arena._path.name, "others"}


# --- through Redis


@pytest.fixture
def memory(tmp_path):
    """An ingress's memory; `shared` is what workers are given of it."""
    memory = IngressMemory(tmp_path, SIZE_BYTES)
    memory.shared = (tmp_path, SIZE_BYTES)
    yield memory
    memory.arena.close()


async def test_large_bodies_and_answers_go_by_memory_once_all_workers_are_known_to_share_it(
    harness, memory
):
    worker = joined(harness, "worker-a" + memory.arena.mark, memory.shared)
    async with open_channel(harness, memory=memory, audit_s=0.01) as channel:
        # Given the first one, after which the channel looks
        assert await served(channel, worker, "first", SMALL) == "first"
        assert memory.requests == {"arena": 0, "redis": 1}
        await eventually_async(lambda: channel._shares_memory)

        # When
        for number in range(20):
            assert await served(channel, worker, f"r{number}", LARGE) == f"r{number}"

        # Then
        assert memory.requests == {"arena": 20, "redis": 1}
        assert memory.answers == {"arena": 20, "redis": 0}
        await eventually_async(lambda: not any(memory.arena._taken))
        await eventually_async(lambda: not harness.client.keys("*replies*"))
    worker.close()


async def test_body_that_a_new_worker_cannot_reach_comes_by_redis(harness, memory, tmp_path):
    near = joined(harness, "worker-a" + memory.arena.mark, memory.shared)
    async with sharing_channel(harness, memory, near) as channel:
        # When one of another host claims a record before the ingress has heard of it
        asked = ask(channel, "second", wire_of("second", size=LARGE))
        await eventually_async(lambda: harness.queued() == ["second"])
        far = joined(harness, "worker-b@elsewhere", (tmp_path / "elsewhere", SIZE_BYTES))
        far.claim(1, 0.0)

        # Then it gets the request again at once, with its body, as if it were a first attempt
        await eventually_async(lambda: harness.queued() not in ([], ["second"]))
        claimed = far.claim(1, 0.0)
        assert [item.owned.attempt for item in claimed.items] == [1]
        assert body_of(claimed.items[0].request) == "second"
        far.reply(items_of(claimed), [make_reply("done", size=LARGE)])
        assert (await asked).body[:4] == b"done"
        assert memory.requests == {"arena": 1, "redis": 2}
        assert memory.answers == {"arena": 0, "redis": 1}
        await eventually_async(lambda: not any(memory.arena._taken))


async def test_answers_are_kept_until_they_were_read(harness, memory, monkeypatch):
    monkeypatch.setattr("batching.store.worker_queue.MOST_UNREAD_BYTES", 4 * LARGE)
    worker = joined(harness, "worker-a" + memory.arena.mark, memory.shared)
    names = [f"r{number}" for number in range(8)]
    queue = harness.ingress("ingress-a" + memory.arena.mark)
    await asyncio.to_thread(
        queue.submit, [Submission(name, 60_000, wire_of(name)) for name in names]
    )

    # When answers are sent in several calls, and nobody has read any
    for _ in range(4):
        claimed = worker.claim(2, 0.0)
        replies = [make_reply(body_of(item.request), size=LARGE) for item in claimed.items]
        worker.reply(items_of(claimed), replies)
        worker.reply(items_of(claimed), replies)  # as after an answer of Redis that was lost

    # Then each is whole, and those that are read make room
    values = await asyncio.to_thread(queue.receive, [])
    bodies = {name: decode_reply(name, value, memory).body for name, value in values.items()}
    assert {name: bytes(body).rstrip(b".").decode() for name, body in bodies.items()} == {
        name: name for name in names
    }
    await asyncio.to_thread(queue.discard, names)
    worker.close()
    assert worker._answers._unread == {}


async def test_answer_that_has_gone_with_its_worker_is_asked_for_again(harness, memory):
    worker = joined(harness, "worker-a" + memory.arena.mark, memory.shared)
    queue = harness.ingress("ingress-a" + memory.arena.mark)
    await asyncio.to_thread(queue.submit, [Submission("a", 60_000, wire_of("a"))])
    claimed = worker.claim(1, 0.0)
    worker.reply(items_of(claimed), [make_reply("answer", size=LARGE)])
    [value] = (await asyncio.to_thread(queue.receive, [])).values()

    # When its file was removed before the ingress has looked into it
    worker._answers._arena.close()

    # Then the ingress is told so
    with pytest.raises(AnswerGone):
        decode_reply("a", value, memory)


async def test_request_whose_answers_go_is_run_once_more_and_no_third_time(harness, memory):
    worker = joined(harness, "worker-a" + memory.arena.mark, memory.shared)
    async with open_channel(harness, memory=memory) as channel:
        asked = ask(channel, "a")

        # When the memory with the answer is gone each time
        for _ in range(2):
            await eventually_async(lambda: turn(worker, LARGE, is_gone=True))

        # Then its client is told that it may ask again
        with pytest.raises(QueueLost):
            await asked
        assert harness.queued() == []


async def test_batch_that_failed_is_not_read_again_from_an_ingress_that_has_gone(
    harness, memory, tmp_path
):
    worker = joined(harness, "worker-a" + memory.arena.mark, memory.shared)
    async with sharing_channel(harness, memory, worker) as channel:
        asked = ask(channel, "second", wire_of("second", size=LARGE))
        await eventually_async(lambda: harness.queued() == ["second"])
        claimed = worker.claim(1, 0.0)

        # When its memory is gone before the handler has failed
        memory.arena.close()
        worker._arenas._mapped.clear()

        # Then each is tried with what was read before
        assert worker.read_again(claimed.items) == claimed.items
        worker.reply(items_of(claimed), [make_reply("done")])
        await asked


def joined(harness, worker_id, memory):
    """A worker that has beaten, and is the only one."""
    harness.client.delete(harness.keys.worker_beats)
    seconds, microseconds = harness.client.time()
    now_ms = seconds * 1000 + microseconds // 1000
    harness.client.zadd(harness.keys.worker_beats, {worker_id: now_ms})
    harness.client.pexpire(harness.keys.worker_beats, 60_000)
    return harness.worker(worker_id, memory)


@contextlib.asynccontextmanager
async def sharing_channel(harness, memory, worker):
    """Yields a channel that knows that this worker shares its memory."""
    async with open_channel(harness, memory=memory, audit_s=0.01) as channel:
        await served(channel, worker, "first", SMALL)
        await eventually_async(lambda: channel._shares_memory)
        yield channel


async def served(channel, worker, name, answer_bytes):
    """The body of the answer to a large request, which the worker sends back."""
    asked = ask(channel, name, wire_of(name, size=LARGE))
    await eventually_async(lambda: turn(worker, answer_bytes))
    return bytes((await asked).body).rstrip(b".").decode()


def turn(worker, answer_bytes, *, is_gone=False):
    claimed = worker.claim(1, 0.0)
    if not isinstance(claimed, Batch):
        return False
    replies = [make_reply(body_of(item.request), size=answer_bytes) for item in claimed.items]
    if is_gone:
        worker._answers.keep("" + worker._answers._mark, "", b"a" * answer_bytes)
        worker._answers._arena._path.unlink(missing_ok=True)
    worker.reply(items_of(claimed), replies)
    return True
