"""How far a worker says that a job is: kept for its attempt, and no longer."""

import pytest

from batching.protocol import BatchTiming, ClosedBy, Reply
from batching.store.jobs.job_records import MOST_TEXT_CHARS, JobStatus, Progress, job_document
from batching.store.node_queue import ReclaimMode
from tests.support import KEY, items_of, make_reply

HALF, LATE = Progress(0.5, "page 5 of 10").encode(), Progress(0.9, "late").encode()


def start(harness, worker, *job_ids):
    for job_id in job_ids:
        harness.submit_job(job_id)
    return items_of(worker.claim(len(job_ids), 0.0))


def shown(harness, job_id="a"):
    return job_document(harness.jobs().find(job_id), "http://localhost")


def test_progress_is_shown_with_the_worker_that_has_the_job(harness):
    # Given
    worker = harness.worker()
    first, _ = start(harness, worker, "a", "b")
    assert "progress" not in shown(harness)

    # When
    assert worker.note_progress([(first, HALF)]) == [True]

    # Then
    assert shown(harness)["progress"] == {"share": 0.5, "text": "page 5 of 10"}
    assert shown(harness)["batch"] == {"worker": "worker-a"}
    assert "progress" not in shown(harness, "b")

    # And it may stay at the end
    worker.reply([first], [make_reply("A")])
    assert shown(harness)["progress"]["share"] == 0.5


def test_document_says_why_the_batch_closed(harness):
    # Given
    worker = harness.worker()
    items = start(harness, worker, "a")
    timing = BatchTiming(1, 2000, 3000, is_first=True, closed_by=ClosedBy.ADAPTIVE)
    # When
    worker.reply(items, [Reply(200, b"A", timing=timing)])
    # Then
    assert shown(harness)["batch"] == {
        "worker": "worker-a",
        "size": 1,
        "closed_by": "adaptive",
        "queue_ms": 2,
        "run_ms": 3,
    }


@pytest.mark.parametrize("end", ["answered", "cancelled"])
def test_nothing_is_told_by_who_does_not_have_the_job_any_more(harness, end):
    # Given
    worker = harness.worker()
    [job] = start(harness, worker, "a")
    worker.note_progress([(job, HALF)])

    # When
    if end == "answered":
        worker.reply([job], [make_reply("A")])
    else:
        harness.jobs().cancel("a")

    # Then
    assert worker.note_progress([(job, LATE)]) == [False]
    assert shown(harness).get("progress", {"share": 0.5})["share"] == 0.5


@pytest.mark.parametrize("mode", [ReclaimMode.CRASHED, ReclaimMode.RELEASED])
def test_progress_goes_with_its_attempt(harness, mode):
    # Given
    worker = harness.worker()
    [job] = start(harness, worker, "a")
    worker.note_progress([(job, HALF)])

    # When
    harness.node().reclaim(KEY, "worker-a", mode)

    # Then
    assert worker.note_progress([(job, LATE)]) == [False]
    assert shown(harness)["status"] == "queued"
    assert not {"progress", "batch"} & shown(harness).keys()
    [job] = items_of(harness.worker("worker-b").claim(1, 0.0))
    assert "progress" not in shown(harness)
    assert shown(harness)["batch"] == {"worker": "worker-b"}


def test_progress_goes_when_the_job_is_tried_again(harness):
    [job] = start(harness, harness.worker(), "a")
    harness.worker().note_progress([(job, HALF)])
    harness.worker().reply([job], [Reply(503, b"no", error_type="X")])
    harness.jobs().retry(harness.jobs().find("a"))
    again = harness.jobs().find("a")
    assert (again.status, again.progress) == (JobStatus.QUEUED, None)
    assert again.worker_id == ""


def test_ordinary_request_and_job_that_has_expired_leave_nothing(harness):
    # Given
    worker = harness.worker()
    harness.submit("a")
    [request] = items_of(worker.claim(1, 0.0))
    [job] = start(harness, worker, "b")
    harness.client.delete(harness.keys.job_prefix + "b")
    # When / Then
    assert worker.note_progress([(request, HALF), (job, HALF)]) == [False, False]
    assert harness.client.keys(harness.keys.job_prefix + "*") == []


@pytest.mark.parametrize("share", [0.0, 1.0, 0.3333])
def test_progress_is_what_was_written_but_for_a_long_text(share):
    progress = Progress(share, "Zürich \n 1 2")
    assert Progress.of(progress.encode()) == progress
    assert len(Progress.of(Progress(share, "ü" * 1000).encode()).text) == MOST_TEXT_CHARS


@pytest.mark.parametrize("value", [None, b"", b"x", b"nan x", b"1e9 x", b"9.0000 x", b"\xff"])
def test_b08_garbage_in_place_of_progress_is_none(value):
    assert Progress.of(value) is None
