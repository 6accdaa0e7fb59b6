"""What a worker tells about a job that runs: kept for its attempt, and no longer."""

import pytest

from batching.protocol import BatchTiming, ClosedBy, Reply
from batching.store.jobs.job_documents import job_document
from batching.store.jobs.job_records import MOST_TEXT_CHARS, JobStatus, Progress
from batching.store.node_queue import ReclaimMode
from batching.store.worker_side.job_news import MOST_PIECES, JobNews
from tests.support import KEY, items_of, make_reply

HALF = Progress(0.5, "page 5 of 10")


def start(harness, worker, *job_ids):
    for job_id in job_ids:
        harness.submit_job(job_id)
    return items_of(worker.claim(len(job_ids), 0.0))


def news(job, *pieces, progress=HALF):
    found = JobNews(job, progress)
    found.pieces.extend(pieces)
    return found


def shown(harness, job_id="a"):
    return job_document(harness.jobs().find(job_id), "http://localhost")


def pieces(harness, from_byte=0):
    jobs = harness.jobs()
    return jobs.read_pieces(jobs.find("a"), from_byte)


def has_pieces(harness):
    return harness.client.exists(harness.keys.job_prefix + "a:pieces") == 1


def test_progress_is_shown_with_the_worker_that_has_the_job(harness):
    # Given
    worker = harness.worker()
    first, second = start(harness, worker, "a", "b")
    assert "progress" not in shown(harness)

    # When
    assert worker.tell([news(first), JobNews(second)]) == [True, True]

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


@pytest.mark.parametrize("end", ["answered", "cancelled", "reclaimed"])
def test_nothing_is_told_by_who_does_not_have_the_job_any_more(harness, end):
    # Given
    worker = harness.worker()
    [job] = start(harness, worker, "a")
    worker.tell([news(job, (0, b"one"))])
    assert has_pieces(harness)

    # When
    if end == "answered":
        worker.reply([job], [make_reply("A")])
    elif end == "cancelled":
        harness.jobs().cancel("a")
    else:
        harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
    late = news(job, (3, b"two"), progress=Progress(0.9, "late"))

    # Then
    assert worker.tell([late]) == [False]
    assert not has_pieces(harness)
    assert shown(harness).get("progress", {"share": 0.5})["share"] == 0.5


@pytest.mark.parametrize("mode", [ReclaimMode.CRASHED, ReclaimMode.RELEASED])
def test_progress_goes_with_its_attempt(harness, mode):
    # Given
    [job] = start(harness, harness.worker(), "a")
    harness.worker().tell([news(job, (0, b"one"))])

    # When
    harness.node().reclaim(KEY, "worker-a", mode)

    # Then
    assert shown(harness)["status"] == "queued"
    assert not {"progress", "batch"} & shown(harness).keys()
    [job] = items_of(harness.worker("worker-b").claim(1, 0.0))
    assert "progress" not in shown(harness)
    assert shown(harness)["batch"] == {"worker": "worker-b"}
    assert harness.jobs().find("a").piece_bytes == 0


def test_progress_goes_when_the_job_is_tried_again(harness):
    [job] = start(harness, harness.worker(), "a")
    harness.worker().tell([news(job, (0, b"one"))])
    harness.worker().reply([job], [Reply(503, b"no", error_type="X")])
    harness.jobs().retry(harness.jobs().find("a"))
    again = harness.jobs().find("a")
    assert (again.status, again.progress, again.piece_bytes) == (JobStatus.QUEUED, None, 0)
    assert again.worker_id == ""


def test_ordinary_request_and_job_that_has_expired_leave_nothing(harness):
    # Given
    worker = harness.worker()
    harness.submit("a")
    [request] = items_of(worker.claim(1, 0.0))
    [job] = start(harness, worker, "b")
    harness.client.delete(harness.keys.job_prefix + "b")
    # When / Then
    assert worker.tell([news(request, (0, b"x")), news(job, (0, b"x"))]) == [False, False]
    assert harness.client.keys(harness.keys.job_prefix + "*") == []


def test_pieces_are_read_from_where_the_listener_is(harness):
    # Given
    worker = harness.worker()
    [job] = start(harness, worker, "a")

    # When, as one acknowledgement was lost, some come twice
    for told in ([(0, b"one"), (3, b"\xfftwo:")], [(3, b"\xfftwo:"), (8, b"end")]):
        worker.tell([news(job, *told, progress=None)])

    # Then
    assert pieces(harness) == [(0, b"one"), (3, b"\xfftwo:"), (8, b"end")]
    assert pieces(harness, 8) == [(8, b"end")]
    assert pieces(harness, 11) == []
    assert harness.jobs().find("a").piece_bytes == 11
    assert 0 < harness.client.pttl(harness.keys.job_prefix + "a:pieces") <= 240_000


def test_only_the_last_pieces_are_kept(harness):
    worker = harness.worker()
    [job] = start(harness, worker, "a")
    for place in range(MOST_PIECES + 10):
        worker.tell([news(job, (place, b"x"))])
    assert [place for place, _ in pieces(harness)] == list(range(10, MOST_PIECES + 10))


def test_news_of_one_job_are_put_together():
    first = news(None, (0, b"a"), progress=HALF)
    both = first.and_then(news(None, (1, b"b"), progress=None))
    assert (both.progress, [*both.pieces]) == (HALF, [(0, b"a"), (1, b"b")])
    assert both.and_then(JobNews(None, Progress(0.7, ""))).progress.share == 0.7


@pytest.mark.parametrize("share", [0.0, 1.0, 0.3333])
def test_progress_is_what_was_written(share):
    progress = Progress(share, "Zürich \n 1 2")
    assert Progress.of(progress.encode()) == progress


def test_long_text_is_cut():
    assert len(Progress.of(Progress(0.1, "ü" * 1000).encode()).text) == MOST_TEXT_CHARS


@pytest.mark.parametrize("value", [None, b"", b"x", b"nan x", b"1e9 x", b"9.0000 x", b"\xff"])
def test_b08_garbage_in_place_of_progress_is_none(value):
    assert Progress.of(value) is None
