import pytest

from batching.store.node_side.node_queue import ReclaimMode
from batching.store.replies import decode_reply
from tests.support import KEY, ids_of


def test_refuse_answers_everything_that_waits_when_no_worker_lives(desk):
    # Given
    desk.submit("s")
    desk.worker("worker-x").claim(1, 0.0)
    desk.node().reclaim(KEY, "worker-x", ReclaimMode.CRASHED)
    desk.submit("a", "b")
    desk.silence_worker()

    # When
    count = desk.node().refuse_waiting(KEY, "no_worker")

    # Then
    assert count == 3
    assert desk.queued() == desk.solo() == []
    assert desk.done() == ["s", "a", "b"]
    assert desk.reply_value("a") == b"a!no_worker"
    assert desk.bells() == 0
    assert desk.counters()["refused"] == 3
    assert desk.unaccounted() == 0


def test_refuse_leaves_the_queue_alone_while_a_worker_lives(desk):
    # Given
    desk.submit("a")

    # When
    count = desk.node().refuse_waiting(KEY, "no_worker")

    # Then
    assert count == 0
    assert desk.queued() == ["a"]


def test_refuse_leaves_alone_what_a_worker_still_runs(desk):
    # Given
    desk.submit("a", "b")
    desk.worker().claim(1, 0.0)
    desk.silence_worker()

    # When
    desk.node().refuse_waiting(KEY, "no_worker")

    # Then
    assert desk.owned() == [("a", 1)]
    assert desk.open_ids() == {"a"}
    assert desk.done() == ["b"]


def test_refuse_goes_on_until_the_queue_is_empty(desk):
    # Given: ids without a request come first, more of them than one call looks at
    names = [f"r{number}" for number in range(700)]
    desk.open(max_queue=1000)
    desk.submit(*names)
    for name in names[:300]:
        desk.lose_request(name)
    desk.silence_worker()

    # When
    count = desk.node().refuse_waiting(KEY, "unregistered")

    # Then
    assert count == 400
    assert desk.queued() == []
    assert desk.unaccounted() == 0


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("no_worker", 503, "ServiceUnavailableException"),
        ("unregistered", 404, "ModelNotFoundException"),
        ("something new", 500, "InternalServerException"),
    ],
)
def test_refusal_is_an_answer_for_the_client(desk, reason, status, kind):
    # Given
    desk.submit("a")
    desk.silence_worker()

    # When
    desk.node().refuse_waiting(KEY, reason)

    # Then
    reply = decode_reply("a", desk.reply_value("a"))
    assert (reply.status, reply.error_type) == (status, kind)


def test_refused_request_is_not_claimed_by_a_worker_that_comes_after_all(desk):
    # Given
    desk.submit("a")
    desk.silence_worker()
    desk.node().refuse_waiting(KEY, "no_worker")

    # When
    desk.open()
    desk.submit("b")

    # Then
    assert ids_of(desk.worker().claim(8, 0.0)) == ["b"]


def test_refuse_goes_on_when_memory_is_full(real_desk, full_memory):
    # Given
    real_desk.submit("a")
    real_desk.silence_worker()
    full_memory()

    # When
    count = real_desk.node().refuse_waiting(KEY, "no_worker")

    # Then
    assert count == 1
    assert real_desk.reply_value("a") == b"a!no_worker"
