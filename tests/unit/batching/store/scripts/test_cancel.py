import pytest

from batching.batcher import Nothing
from batching.store.ingress_side.ingress_queue import CancelCode, Submission
from batching.store.node_side.node_queue import ReclaimMode
from batching.store.worker_side.worker_queue import ReplyCode
from tests.support import KEY, ids_of, items_of, make_reply, wire_of


def test_cancel_takes_a_waiting_request_out_of_the_queue(desk):
    # Given
    desk.submit("a", "b", "c")

    # When
    codes = desk.ingress().cancel(["b"])

    # Then
    assert codes == [CancelCode.CANCELLED]
    assert desk.queued() == ["a", "c"]
    assert desk.open_ids() == {"a", "c"}
    assert desk.request("b") == {}
    assert desk.counters() == {"accepted": 3, "cancelled": 1}


def test_cancel_ends_the_ownership_of_a_claimed_request(desk):
    # Given
    desk.submit("a", "b")
    desk.worker().claim(2, 0.0)

    # When
    codes = desk.ingress().cancel(["a"])

    # Then
    assert codes == [CancelCode.CANCELLED]
    assert desk.leased() == ["b"]
    assert desk.unaccounted() == 0


def test_cancel_finds_a_running_request_whoever_owns_it(desk):
    # Given: one in its first attempt, and a crash suspect, at workers of whom one is silent
    desk.submit("suspect")
    desk.worker("worker-x").claim(1, 0.0)
    desk.node().reclaim(KEY, "worker-x", ReclaimMode.CRASHED)
    desk.worker("worker-b").claim(1, 0.0)
    desk.submit("running", "beside")
    held = items_of(desk.worker("worker-c").claim(2, 0.0))
    desk.silence_worker("worker-c")
    assert desk.owned("worker-b") == [("suspect", 2)]

    # When
    codes = desk.ingress().cancel(["suspect", "running"])

    # Then
    assert codes == [CancelCode.CANCELLED] * 2
    assert desk.leased("worker-b") == []
    assert desk.owned("worker-c") == [("beside", 1)]
    answers = desk.worker("worker-c").reply(held, [make_reply("x")] * 2)
    assert answers == [ReplyCode.UNWANTED, ReplyCode.STORED]
    assert desk.reply_value("running") is None
    assert desk.done() == ["beside"]
    assert desk.counters()["cancelled"] == 2
    assert desk.unaccounted() == 0


def test_cancelled_request_is_not_reclaimed_when_its_worker_dies(desk):
    # Given
    desk.submit("a")
    desk.worker().claim(1, 0.0)
    desk.ingress().cancel(["a"])

    # When
    count = desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # Then
    assert count == 0
    assert desk.worker("worker-b").claim(1, 0.0) is Nothing.EMPTY


def test_cancel_takes_a_crash_suspect_out_of_its_line(desk):
    # Given
    desk.submit("a", "b")
    desk.worker().claim(2, 0.0)
    desk.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)

    # When
    codes = desk.ingress().cancel(["a"])

    # Then
    assert codes == [CancelCode.CANCELLED]
    assert desk.solo() == ["b"]
    assert desk.unaccounted() == 0


def test_cancel_comes_too_late_when_the_reply_is_there(desk):
    # Given
    worker = desk.worker()
    desk.submit("a")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])

    # When
    codes = desk.ingress().cancel(["a"])

    # Then
    assert codes == [CancelCode.REPLIED]
    assert desk.reply_value("a") is not None
    assert "cancelled" not in desk.counters()


@pytest.mark.parametrize("request_id", ["never-seen", "cancelled-before"])
def test_cancel_knows_nothing_of_a_request_that_is_not_there(desk, request_id):
    # Given
    desk.submit("cancelled-before")
    desk.ingress().cancel(["cancelled-before"])

    # When
    codes = desk.ingress().cancel([request_id])

    # Then
    assert codes == [CancelCode.UNKNOWN]
    assert desk.counters()["cancelled"] == 1


def test_cancel_answers_for_each_request(desk):
    # Given
    worker = desk.worker()
    desk.submit("replied", "waiting")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])

    # When
    codes = desk.ingress().cancel(["unknown", "replied", "waiting"])

    # Then
    assert codes == [CancelCode.UNKNOWN, CancelCode.REPLIED, CancelCode.CANCELLED]


def test_cancel_drops_the_requests_large_body(desk):
    # Given
    desk.ingress().submit([Submission("a", 60_000, wire_of("a", size=100_000))])

    # When
    desk.ingress().cancel(["a"])

    # Then
    assert not desk.has_body("a")


def test_cancel_makes_room_in_a_full_queue(desk):
    # Given
    desk.client.hset(desk.keys.config, "max_queue", 2)
    desk.submit("a", "b")

    # When
    desk.ingress().cancel(["a"])
    desk.submit("c")

    # Then
    assert desk.queued() == ["b", "c"]


def test_cancel_goes_on_when_memory_is_full(real_desk, full_memory):
    # Given
    real_desk.submit("a", "b")
    real_desk.worker().claim(1, 0.0)
    full_memory()

    # When
    codes = real_desk.ingress().cancel(["a", "b"])

    # Then
    assert codes == [CancelCode.CANCELLED, CancelCode.CANCELLED]
    assert real_desk.unaccounted() == 0


def test_cancelled_request_is_never_claimed(desk):
    # Given
    desk.submit("a", "b")
    desk.ingress().cancel(["a"])

    # When / Then
    assert ids_of(desk.worker().claim(2, 0.0)) == ["b"]
