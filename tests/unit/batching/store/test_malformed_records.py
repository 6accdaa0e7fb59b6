"""B8: records that are not ours. No script fails, and honest neighbours are served.

Each goes in by HSET, past our own calls, under the id of a request that waits or is leased.
"""

import pickle  # noqa: TID251 - what an attacker would write

import pytest

from batching.batcher import Nothing, Partial
from batching.protocol import ReplyChunk
from batching.store.ingress_queue import AuditCode, CancelCode, SubmitCode
from batching.store.node_queue import ReclaimMode
from batching.store.worker_queue import ReplyCode
from tests.support import KEY, ids_of, items_of, make_reply, make_spec

LONG_S = 60.0
LINE = b"0 - 0 %d 0 60000 ingress-a"
DIGITS = b"9" * 400  # no number in Lua, and a very large one in Python

MALFORMED = {
    "nothing": b"",
    "bytes": bytes(range(256)),
    "pickle": pickle.dumps({"a": 1}),
    "no end of line": LINE,
    "one field less": b"0 - 0 %d 0 60000\nwire",
    "only dashes": b"- - - - - - -\nwire",
    "negative attempts": b"-1 - 0 %d 0 60000 ingress-a\nwire",
    "endless attempts": DIGITS + b" - 0 %d 0 60000 ingress-a\nwire",
    "endless chunks": b"0 - " + DIGITS + b" %d 0 60000 gone\nwire",
    "endless time": b"0 - 0 " + DIGITS + b" 0 60000 ingress-a\nwire",
    "age that is no number": b"0 - 0 %d nan 60000 ingress-a\nwire",
    "age without end in the past": b"0 - 0 %d -inf 60000 ingress-a\nwire",
    "unknown ingress": b"0 - 0 %d 0 60000 unknown\nwire",
}


@pytest.fixture(params=MALFORMED.values(), ids=MALFORMED)
def spoil(request, harness):
    """A function that writes the malformed record under a request's id."""

    def write(request_id):
        seconds, microseconds = harness.client.time()
        now_us = b"%d" % (seconds * 1_000_000 + microseconds)
        harness.write_record(request_id, request.param.replace(b"%d", now_us))

    return write


def serve_all(worker):
    """The ids that this worker is given, all of which it answers."""
    served = []
    while (claimed := worker.claim(8, 0.0)) is not Nothing.EMPTY:
        served += ids_of(claimed)
        worker.reply(items_of(claimed), [make_reply("ok")] * len(claimed))
    return served


def assert_settled(harness):
    assert harness.open_ids() == set()
    assert harness.queued() == harness.suspects() == harness.leased() == []
    assert harness.unaccounted() == 0


@pytest.mark.parametrize("patience_s", [0.0, LONG_S])
def test_b08_claim_passes_over_a_malformed_record(harness, spoil, patience_s):
    # Given
    harness.submit("bad", "good")
    spoil("bad")
    worker = harness.worker()

    # When
    claimed = worker.claim(8, patience_s)
    if isinstance(claimed, Partial):
        claimed = worker.claim(8, 0.0)

    # Then
    assert ids_of(claimed) == ["good"]
    worker.reply(items_of(claimed), [make_reply("ok")])
    assert harness.counters() == {"accepted": 2, "orphaned": 1, "replied": 1}
    assert_settled(harness)


@pytest.mark.parametrize("mode", [ReclaimMode.CRASHED, ReclaimMode.RELEASED], ids=str)
@pytest.mark.parametrize("is_spoilt_first", [True, False], ids=["leased", "waiting again"])
def test_b08_reclaim_passes_over_a_malformed_record(harness, spoil, mode, is_spoilt_first):
    # Given
    harness.submit("bad", "good")
    harness.worker().claim(2, 0.0)
    if is_spoilt_first:
        spoil("bad")

    # When
    harness.node().reclaim(KEY, "worker-a", mode)
    if not is_spoilt_first:
        spoil("bad")
        status = harness.registry().queue(make_spec())
        assert (status.waiting, status.open_requests) == (2, 2)
        assert 0 <= status.oldest_age_s < 60

    # Then
    assert serve_all(harness.worker("worker-b")) == ["good"]
    assert_settled(harness)


def test_b08_refuse_passes_over_a_malformed_record(harness, spoil):
    # Given
    harness.submit("bad", "good")
    spoil("bad")
    harness.silence_worker()

    # When
    harness.node().refuse_waiting(KEY, "no_worker")

    # Then
    assert harness.done()[-1] == "good"
    assert harness.reply_value("good") == b"good!no_worker"
    assert_settled(harness)


def test_b08_worker_can_answer_a_malformed_record(harness, spoil):
    # Given
    harness.submit("bad", "good")
    worker = harness.worker()
    items = items_of(worker.claim(2, 0.0))
    spoil("bad")

    # When
    bad, good = worker.send(items, [ReplyChunk(0, b"piece")] * 2, 1.0)
    codes = worker.reply(items, [make_reply("ok")] * 2)

    # Then: it had been well-formed when it was claimed
    assert bad in (ReplyCode.UNWANTED, ReplyCode.STORED, ReplyCode.STORED_BEFORE)
    assert good is ReplyCode.STORED
    assert codes == [ReplyCode.STORED] * 2
    assert {*harness.done()} == {"bad", "good"}
    assert harness.open_ids() == set()
    assert harness.unaccounted() == 0


def test_b08_ingress_can_ask_after_and_cancel_a_malformed_record(harness, spoil):
    # Given
    harness.submit("bad", "good")
    spoil("bad")

    # When / Then
    assert harness.submit("bad") == [SubmitCode.KNOWN]
    assert harness.ingress().audit(["bad"]) == [AuditCode.OPEN]
    assert harness.ingress().cancel(["bad"]) == [CancelCode.CANCELLED]
    assert serve_all(harness.worker()) == ["good"]
    assert_settled(harness)


@pytest.mark.parametrize(
    "entry", ["good", "good:", ":1", "good:0", "good:2", "good:x", "good:" + "9" * 400, "gone:1"]
)
def test_b08_reclaim_passes_over_a_malformed_entry_of_a_lease(harness, entry):
    # Given: an honest request that waits, and a lease with an entry that is not ours
    harness.submit("good")
    harness.client.rpush(harness.keys.lease_prefix + "worker-x", entry)

    # When
    harness.node().reclaim(KEY, "worker-x", ReclaimMode.CRASHED)

    # Then
    assert harness.leased("worker-x") == []
    assert serve_all(harness.worker()) == ["good"]
    assert harness.queued() == harness.suspects() == []
