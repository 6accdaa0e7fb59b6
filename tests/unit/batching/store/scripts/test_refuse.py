import pytest

from batching.store.node_queue import ReclaimMode
from batching.store.records import decode_reply
from tests.support import KEY


def test_refuse_answers_everything_that_waits_when_no_worker_lives(harness):
    # Given
    harness.submit("s")
    harness.worker("worker-x").claim(1, 0.0)
    harness.node().reclaim(KEY, "worker-x", ReclaimMode.CRASHED)
    harness.submit("a", "b")
    harness.silence_worker()

    # When
    count = harness.node().refuse_waiting(KEY, "no_worker")

    # Then
    assert count == 3
    assert harness.queued() == harness.suspects() == []
    assert harness.done() == ["s", "a", "b"]
    assert harness.reply_value("a") == b"a!no_worker"
    assert harness.wakeups() == 0
    assert harness.counters()["refused"] == 3
    assert harness.unaccounted() == 0


def test_refuse_leaves_alone_what_a_worker_lives_for_or_runs(harness):
    # Given
    harness.submit("a", "b")
    harness.worker().claim(1, 0.0)
    assert harness.node().refuse_waiting(KEY, "no_worker") == 0
    assert harness.queued() == ["b"]

    # When
    harness.silence_worker()
    harness.node().refuse_waiting(KEY, "no_worker")

    # Then
    assert harness.owned() == [("a", 1)]
    assert harness.open_ids() == {"a"}
    assert harness.done() == ["b"]


def test_refuse_goes_on_until_the_queue_is_empty(harness):
    # Given: ids without a request come first, more of them than one call looks at
    names = [f"r{number}" for number in range(700)]
    harness.open(max_queue=1000)
    harness.submit(*names)
    for name in names[:300]:
        harness.lose_request(name)
    harness.silence_worker()

    # When
    count = harness.node().refuse_waiting(KEY, "unregistered")

    # Then
    assert count == 400
    assert harness.queued() == []
    assert harness.unaccounted() == 0


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("no_worker", 503, "ServiceUnavailableException"),
        ("unregistered", 404, "ModelNotFoundException"),
        ("something new", 500, "InternalServerException"),
    ],
)
def test_refusal_is_an_answer_for_the_client(harness, reason, status, kind):
    # Given
    harness.submit("a")
    harness.silence_worker()

    # When
    harness.node().refuse_waiting(KEY, reason)

    # Then
    reply = decode_reply("a", harness.reply_value("a"))
    assert (reply.status, reply.error_type) == (status, kind)
