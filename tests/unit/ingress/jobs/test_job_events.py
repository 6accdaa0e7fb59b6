"""What a listener hears of a job: its progress, and its answer in pieces."""

import itertools
import json

import pytest
import requests

from batching.protocol import INLINE_LIMIT_BYTES, Reply
from batching.store.clients import connect
from batching.store.jobs.job_records import Progress
from batching.store.worker_queue import WorkerQueue
from batching.store.worker_side.job_news import JobNews
from tests.support import items_of

SIZE = INLINE_LIMIT_BYTES


class RunningJob:
    """A job that this test runs, in the place of the node's worker."""

    def __init__(self, echo, queue):
        answer = echo.predict("/predictions/echo", data=b"x", headers={"Prefer": "respond-async"})
        self.url = answer.json()["cancel_url"]
        self._queue = queue
        [self._owned] = items_of(queue.claim(1, 0.0))

    def tell(self, *pieces, progress=None):
        news = JobNews(self._owned, progress)
        news.pieces.extend(pieces)
        assert self._queue.tell([news]) == [True]

    def end(self, body, **fields):
        self._queue.reply([self._owned], [Reply(fields.pop("status", 200), body, **fields)])

    def listen(self, last_event_id=""):
        headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
        with requests.get(f"{self.url}/events", headers=headers, stream=True, timeout=20) as answer:
            lines = answer.iter_lines(decode_unicode=True)
            while fields := list(itertools.takewhile(bool, lines)):
                name, kind, data = (field.partition(": ")[2] for field in fields)
                yield name, kind, json.loads(data)


@pytest.fixture
def job(echo, node, redis_url):
    node.pause()
    client = connect(redis_url)
    yield RunningJob(echo, WorkerQueue(client, echo.services.registry.specs()[0].key, "9000", 9000))
    node.resume()
    client.close()


def test_pieces_are_text_or_base64_and_the_rest_comes_before_the_end(job):
    # Given
    job.tell((0, b"one\r\n"), (5, b"\xff\xfe"), progress=Progress(0.5, "half"))
    events = job.listen()
    assert next(events)[:2] == ("running-1", "status")
    assert next(events) == ("running-1-5", "piece", {"offset": 0, "text": "one\r\n"})
    assert next(events) == ("running-1-7", "piece", {"offset": 5, "base64": "//4="})
    # When
    job.tell(progress=Progress(0.75, ""))
    assert next(events) == ("running-1-7", "progress", {"share": 0.75})
    rest = "a" + "é" * SIZE  # a character lies across the limit
    job.end(b"one\r\n\xff\xfe" + rest.encode(), chunks=1)
    # Then
    *heard, last = events
    assert [kind for _, kind, _ in heard] == ["piece"] * 3
    assert "".join(content["text"] for _, _, content in heard) == rest
    assert last[:2] == ("succeeded-1", "status")


def test_late_listener_sees_what_it_missed(job):
    job.tell((100, b"late"))
    events = job.listen()
    next(events)
    assert next(events)[2] == {"offset": 100, "text": "late"}
    job.end(b"x" * 100 + b"lateend", chunks=1)
    assert [content.get("text") for _, _, content in events] == ["end", None]


@pytest.mark.parametrize(
    "reply",
    [{"chunks": 0}, {"chunks": 1, "status": 503, "error_type": "X"}],
    ids=["ran again", "failed"],
)
def test_answer_that_is_not_the_one_of_the_pieces_is_not_joined_to_them(job, reply):
    job.tell((0, b"of another run"))
    events = job.listen()
    next(events), next(events)
    job.end(b"quite another answer, a longer one", **reply)
    assert [kind for _, kind, _ in events] == ["status"]


@pytest.mark.parametrize("last", ["", "x", "running", "running-1-" + "9" * 40, "-1", "queued-0"])
def test_any_last_event_id_is_borne(job, last):
    job.tell((0, b"one"))
    job.end(b"one", chunks=1)
    assert [*job.listen(last)][-1][0] == "succeeded-1"
