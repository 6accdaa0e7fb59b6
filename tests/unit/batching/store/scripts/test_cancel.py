from batching.store.ingress_side.ingress_queue import CancelCode, Submission
from batching.store.node_side.node_queue import ReclaimMode
from batching.store.worker_side.worker_queue import ReplyCode
from tests.support import KEY, items_of, make_reply, wire_of


def test_cancel_takes_a_waiting_request_out_of_the_queue(harness):
    # Given
    harness.submit("a", "b", "c")

    # When
    codes = harness.ingress().cancel(["b"])

    # Then
    assert codes == [CancelCode.CANCELLED]
    assert harness.queued() == ["a", "c"]
    assert harness.open_ids() == {"a", "c"}
    assert harness.request("b") == {}
    assert harness.counters() == {"accepted": 3, "cancelled": 1}


def test_cancel_finds_a_running_request_whoever_owns_it(harness):
    # Given: one in its first attempt, and a crash suspect, at workers of whom one is silent
    harness.submit("suspect")
    harness.worker("worker-x").claim(1, 0.0)
    harness.node().reclaim(KEY, "worker-x", ReclaimMode.CRASHED)
    harness.worker("worker-b").claim(1, 0.0)
    harness.submit("running", "beside")
    held = items_of(harness.worker("worker-c").claim(2, 0.0))
    harness.silence_worker("worker-c")
    assert harness.owned("worker-b") == [("suspect", 2)]

    # When
    codes = harness.ingress().cancel(["suspect", "running"])

    # Then
    assert codes == [CancelCode.CANCELLED] * 2
    assert harness.leased("worker-b") == []
    assert harness.owned("worker-c") == [("beside", 1)]
    answers = harness.worker("worker-c").reply(held, [make_reply("x")] * 2)
    assert answers == [ReplyCode.UNWANTED, ReplyCode.STORED]
    assert harness.reply_value("running") is None
    assert harness.done() == ["beside"]
    assert harness.counters()["cancelled"] == 2
    assert harness.unaccounted() == 0


def test_cancel_answers_for_each_request(harness):
    # Given
    worker = harness.worker()
    harness.submit("replied", "waiting")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])

    # When
    codes = harness.ingress().cancel(["unknown", "replied", "waiting"])

    # Then
    assert codes == [CancelCode.UNKNOWN, CancelCode.REPLIED, CancelCode.CANCELLED]


def test_cancel_drops_the_requests_large_body(harness):
    # Given
    harness.ingress().submit([Submission("a", 60_000, wire_of("a", size=100_000))])

    # When
    harness.ingress().cancel(["a"])

    # Then
    assert not harness.has_body("a")


def test_cancel_goes_on_when_memory_is_full(real_harness, full_memory):
    # Given
    real_harness.submit("a", "b")
    real_harness.worker().claim(1, 0.0)
    full_memory()

    # When
    codes = real_harness.ingress().cancel(["a", "b"])

    # Then
    assert codes == [CancelCode.CANCELLED, CancelCode.CANCELLED]
    assert real_harness.unaccounted() == 0
