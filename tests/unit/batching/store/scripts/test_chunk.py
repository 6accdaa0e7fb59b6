"""Pieces of an answer: only the owner adds them, the ingress hears of each, none comes twice."""

import pytest

from batching.protocol import ReplyChunk
from batching.store.ingress_queue import AuditCode, CancelCode
from batching.store.node_queue import ReclaimMode
from batching.store.records import decode_reply
from batching.store.worker_queue import MAX_WAITING_CHUNKS, ReplyCode
from tests.support import KEY, items_of, make_reply, wire_of

PATIENCE_S = 2.0


def claim(harness, worker, *request_ids):
    harness.submit(*request_ids)
    return items_of(worker.claim(len(request_ids), 0.0))


def send(worker, items, index, text="piece"):
    return worker.send(items, [ReplyChunk(index, text.encode())] * len(items), PATIENCE_S)


def pieces(harness, request_id, taken=0):
    wires = harness.ingress().read_chunks(request_id, taken)
    return [ReplyChunk.decode(wire).body.decode() for wire in wires]


def test_chunk_waits_for_its_ingress_which_is_told_once_until_it_has_read(harness):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a", "b")

    # When
    codes = [send(worker, items, 0, "one"), send(worker, items, 1, "two")]

    # Then
    assert codes == [[ReplyCode.STORED] * 2] * 2
    assert pieces(harness, "a") == pieces(harness, "b") == ["one", "two"]
    assert harness.leased() == ["a", "b"]
    assert harness.done() == ["a", "b"]

    # When: it has read and taken them
    assert pieces(harness, "a", taken=2) == []
    send(worker, items, 2)

    # Then
    assert harness.done() == ["a", "b", "a"]


def test_chunk_comes_once_and_in_its_place(harness):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a")
    record = harness.request("a")
    assert record["wire"]
    harness.client.pexpire(harness.keys.open, 1000)

    # When one comes too early, and one again, as its acknowledgement was lost
    codes = [send(worker, items, index, f"piece {index}") for index in (1, 0, 0, 1)]

    # Then
    assert [code for [code] in codes] == [
        *(ReplyCode.STALE, ReplyCode.STORED, ReplyCode.STORED_BEFORE, ReplyCode.STORED)
    ]
    assert pieces(harness, "a") == ["piece 0", "piece 1"]

    # And the record counts them, lives as long as pieces come, and has no bytes any more
    assert harness.request("a") == record | {"chunks": "2", "wire": ""}
    assert harness.client.pttl(harness.keys.open) > 61_000


def test_chunk_must_wait_when_its_client_is_slow(harness):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a", "b")
    for index in range(MAX_WAITING_CHUNKS):
        send(worker, items, index)
    pieces(harness, "b", taken=1)

    # When
    codes = send(worker, items, MAX_WAITING_CHUNKS)

    # Then
    assert codes == [ReplyCode.FULL, ReplyCode.STORED]
    assert harness.client.llen(harness.keys.chunk_prefix + "a") == MAX_WAITING_CHUNKS

    # When
    pieces(harness, "a", taken=1)

    # Then
    assert send(worker, items[:1], MAX_WAITING_CHUNKS) == [ReplyCode.STORED]


def test_chunk_is_unwanted_when_the_request_was_cancelled(harness):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a")
    send(worker, items, 0)

    # When
    assert harness.ingress().cancel(["a"]) == [CancelCode.CANCELLED]

    # Then
    assert harness.leased() == []
    assert send(worker, items, 1) == [ReplyCode.UNWANTED]
    assert pieces(harness, "a") == []
    assert harness.unaccounted() == 0


def test_chunk_of_another_worker_or_attempt_is_stale(harness):
    # Given
    zombie, owner = harness.worker("worker-z"), harness.worker("worker-b")
    old = claim(harness, zombie, "a")
    harness.node().reclaim(KEY, "worker-z", ReclaimMode.CRASHED)

    # When: waiting again, and owned by another
    while_waiting = send(zombie, old, 0, "old")
    new = items_of(owner.claim(1, 0.0))
    while_owned = send(zombie, old, 0, "old")

    # Then
    assert while_waiting == while_owned == [ReplyCode.STALE]
    assert send(owner, new, 0, "new") == [ReplyCode.STORED]
    assert pieces(harness, "a") == ["new"]


def test_chunk_is_stale_when_its_request_was_given_back(harness):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a")
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.RELEASED)

    # When / Then: the next worker begins its answer, and has all of the request
    assert send(worker, items, 0, "old") == [ReplyCode.STALE]
    assert harness.request("a")["chunks"] == "0"
    claimed = harness.worker("worker-b").claim(1, 0.0)
    assert claimed.items[0].request.to_wire() == wire_of("a")
    assert pieces(harness, "a") == []


@pytest.mark.parametrize("mode", list(ReclaimMode), ids=str)
def test_answer_that_has_begun_is_never_begun_again(harness, mode):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a", "b")
    send(worker, items[:1], 0)
    if mode is ReclaimMode.DEAD:
        harness.silence_worker()

    # When
    if mode is ReclaimMode.RECOVERED:
        worker.recover()
    else:
        harness.node().reclaim(KEY, "worker-a", mode)

    # Then
    assert harness.queued() + harness.suspects() == ["b"]
    reply = decode_reply("a", harness.reply_value("a"))
    assert (reply.status, reply.reason) == (500, "worker_crashed")
    assert harness.unaccounted() == 0


def test_audit_tells_of_pieces_whose_entry_was_lost(harness):
    # Given
    worker = harness.worker()
    items = claim(harness, worker, "a", "b")
    send(worker, items[:1], 0)
    harness.client.delete(harness.keys.done_prefix + "ingress-a")

    # When / Then
    assert harness.ingress().audit(["a", "b"]) == [AuditCode.STREAMED, AuditCode.OPEN]

    # When
    worker.reply(items[:1], [make_reply("end")])

    # Then
    assert harness.ingress().audit(["a"]) == [AuditCode.REPLIED]
