"""The servers that are asked for the keys, what an answer means, and RQ's names on the wire."""

import hiredis
import pytest
import redis
from redis.crc import key_slot

from batching.store.cluster import Finder, RqPacker, SeedNodes, received

A, B, C, D = [(name, 1) for name in "abcd"]


def test_seed_nodes_begin_with_the_one_that_answered_last():
    # Given
    seed_nodes = SeedNodes([A, B, C], doubt_s=0.0)
    assert list(seed_nodes) == [A, B, C]
    # When
    seed_nodes.answered(B)
    # Then
    assert list(seed_nodes) == [B, A, C]


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
    finder = Finder("main", SeedNodes([A]), {}, is_cluster=False)
    assert finder.read(A, master()) == (("10.0.0.1", 7), [])


@pytest.mark.parametrize(
    "answer", [{}, master(is_sdown=True), master(is_odown=True), master(is_master=False)]
)
def test_master_that_is_down_or_unknown_is_no_answer(answer):
    finder = Finder("main", SeedNodes([A]), {}, is_cluster=False)
    with pytest.raises(redis.ConnectionError):
        finder.read(A, answer)


def test_node_names_the_slots_master_and_everybody_else():
    # Given: a node that does not know its own name is the one that was asked
    finder = Finder("{ferry}", SeedNodes([A]), {}, is_cluster=True)
    slot = key_slot(b"{ferry}:models")
    answer = [
        [0, slot - 1, [b"x", 1, b"id"]],
        [slot, 16383, [b"", 2, b"id"], [b"z", 3, b"id"]],
    ]
    # When / Then
    assert finder.read(A, answer) == (("a", 2), [("x", 1), ("a", 2), ("z", 3)])


def test_slot_without_a_server_is_no_answer():
    finder = Finder("{ferry}", SeedNodes([A]), {}, is_cluster=True)
    with pytest.raises(redis.ConnectionError, match="no server has slot"):
        finder.read(A, [[0, 1, [b"x", 1, b"id"]]])


def test_rq_names_are_completed_on_the_wire_and_nothing_else_is():
    # When
    sent = RqPacker().pack("SADD", "rq:queues", b"rq:queue:x", 1, "a rq:b", b"\xff")
    # Then
    names = (b"SADD", b"{ferry}:rq:queues", b"{ferry}:rq:queue:x", b"1", b"a rq:b", b"\xff")
    assert b"".join(sent) == hiredis.pack_command(names)


def test_rq_names_come_back_as_rq_knows_them_however_deep():
    # Given
    answer = [b"{ferry}:rq:a", {b"{ferry}:rq:b": [b"{ferry}:models", {b"{ferry}:rq:c"}]}, 1, None]
    # When / Then
    assert received(answer) == [b"rq:a", {b"rq:b": [b"{ferry}:models", {b"rq:c"}]}, 1, None]
