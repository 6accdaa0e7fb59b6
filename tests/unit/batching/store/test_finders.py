"""The servers that are asked for the keys, what an answer means, and RQ's names on the wire."""

import asyncio
import contextlib
import gc

import pytest
import redis
from redis.crc import key_slot

from batching.store.finders import MasterFinder, SeedNodes, SlotFinder
from batching.store.rq_names import RenamingPacker, received

A, B, C, D = [(name, 1) for name in "abcd"]


def test_seed_nodes_begin_with_the_one_that_answered_last():
    # Given
    seed_nodes = SeedNodes([A, B, C], doubt_s=0.0)
    assert list(seed_nodes) == [A, B, C]
    # When
    seed_nodes.answered(B)
    # Then
    assert list(seed_nodes) == [B, A, C]


def test_seed_nodes_begin_with_the_next_one_when_no_caller_waited_for_an_answer():
    # Given: the first one is asked, and the caller is cancelled
    seed_nodes = SeedNodes([A, B, C], doubt_s=0.0)
    assert next(iter(seed_nodes)) == A
    # When / Then
    assert list(seed_nodes) == [B, C, A]


def test_seed_nodes_begin_with_another_one_when_the_last_answer_did_not_help():
    # Given
    seed_nodes = SeedNodes([A, B, C])
    next(iter(seed_nodes))
    seed_nodes.answered(A)
    # When: the address was no good, so it is asked for again at once
    assert next(iter(seed_nodes)) == B


def test_seed_nodes_are_the_seeds_and_those_of_the_last_answer():
    # Given
    seed_nodes = SeedNodes([A], doubt_s=0.0)
    seed_nodes.answered(A, [B, C])
    # When: one has left the cluster, another one has come
    seed_nodes.answered(B, [A, B, D])
    # Then
    assert list(seed_nodes) == [B, A, D]


def master(**changes):
    state = {"ip": "10.0.0.1", "port": 7, "is_master": True, "is_sdown": False, "is_odown": False}
    return {"main": {**state, **changes}}


def test_sentinel_names_the_master():
    finder = MasterFinder("main", SeedNodes([A]), {}, {})
    assert finder.read(A, master()) == (("10.0.0.1", 7), [])


@pytest.mark.parametrize(
    "answer", [{}, master(is_sdown=True), master(is_odown=True), master(is_master=False)]
)
def test_master_that_is_down_or_unknown_is_no_answer(answer):
    finder = MasterFinder("main", SeedNodes([A]), {}, {})
    with pytest.raises(redis.ConnectionError):
        finder.read(A, answer)


def test_node_names_the_slots_master_and_everybody_else():
    # Given: a node that does not know its own name is the one that was asked
    finder = SlotFinder("{ferry}", SeedNodes([A]), {}, {})
    slot = key_slot(b"{ferry}:models")
    answer = [
        [0, slot - 1, [b"x", 1, b"id"]],
        [slot, 16383, [b"", 2, b"id"], [b"z", 3, b"id"]],
    ]
    # When / Then
    assert finder.read(A, answer) == (("a", 2), [("x", 1), ("a", 2), ("z", 3)])


def test_slot_without_a_server_is_no_answer():
    finder = SlotFinder("{ferry}", SeedNodes([A]), {}, {})
    with pytest.raises(redis.ConnectionError, match="no server has slot"):
        finder.read(A, [[0, 1, [b"x", 1, b"id"]]])


class Words:
    """A packer that keeps the words."""

    def pack(self, *arguments):
        return arguments


def test_rq_names_are_completed_on_the_wire_and_nothing_else_is():
    # When
    sent = RenamingPacker(Words()).pack("SADD", "rq:queues", b"rq:queue:x", 1, "a rq:b", b"\xff")
    # Then
    assert sent == ("SADD", "{ferry}:rq:queues", b"{ferry}:rq:queue:x", 1, "a rq:b", b"\xff")


def test_rq_names_come_back_as_rq_knows_them_however_deep():
    # Given
    answer = [b"{ferry}:rq:a", {b"{ferry}:rq:b": [b"{ferry}:models", {b"{ferry}:rq:c"}]}, 1, None]
    # When / Then
    assert received(answer) == [b"rq:a", {b"rq:b": [b"{ferry}:models", {b"rq:c"}]}, 1, None]


async def test_finder_that_is_ended_again_and_again_leaves_no_connection_open():
    """One that is left open fails the test when it is collected."""
    answering = []

    async def answer(reader, writer):
        answering.append(asyncio.current_task())
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                commands = data.count(b"*")
                writer.write(b"*0\r\n" if b"SENTINEL" in data else b"+OK\r\n" * commands)
        writer.close()

    async def find(seed_nodes, steps):
        # Given one that has come so far
        finding = asyncio.create_task(
            MasterFinder("m", seed_nodes, {}, {"protocol": 2}).find_async()
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        # When
        while not finding.done():
            finding.cancel()
            await asyncio.sleep(0)
        # Then
        assert finding.cancelled() or isinstance(finding.exception(), redis.ConnectionError)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        for steps in range(80):
            await find(SeedNodes([server.sockets[0].getsockname()]), steps)
        gc.collect()
        await asyncio.wait_for(asyncio.gather(*answering), 5)
