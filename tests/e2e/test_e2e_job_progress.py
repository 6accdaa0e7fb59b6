"""What a job tells while it runs: its progress, its batch, and pieces of its answer."""

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

import ferry
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer
from tests.support import eventually

HANDLER = Path(__file__).with_name("streaming_handler.py")
ASYNC = {"Prefer": "respond-async"}
REPLACED = chr(0xFFFD)

pytestmark = pytest.mark.slow


class Event(NamedTuple):
    id: str
    kind: str
    content: dict[str, Any]


class Model:
    """A served model whose jobs tell about themselves, and hold until they may go on."""

    def __init__(self, server: FerryServer, ledger: Path) -> None:
        self.server = server
        self._gate = Path(f"{ledger}.go")
        self._gate.unlink(missing_ok=True)

    def let_go(self) -> None:
        self._gate.touch()

    def submit(self, *steps: str) -> dict[str, Any]:
        response = self.server.predict("telling", " ".join(steps).encode(), headers=ASYNC)
        assert response.status_code == 202, response.text
        return dict(response.json())


@pytest.fixture(scope="module")
def served(server: FerryServer) -> Iterator[Path]:
    ledger = server.store / "telling.ledger"
    ledger.touch()
    files = {"handler.py": HANDLER.read_text(encoding="utf-8"), "ledger": str(ledger)}
    archive = make_archive(server.store, "telling", files)
    with server.model(archive, "telling", batch_size=2, max_batch_delay=200, response_timeout=2):
        yield ledger


@pytest.fixture
def model(server: FerryServer, served: Path) -> Iterator[Model]:
    model = Model(server, served)
    yield model
    model.let_go()


def get(url: str, **headers: str) -> requests.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.get(url, headers=sent, timeout=40)


@contextlib.contextmanager
def listening(job: dict[str, Any], **headers: str) -> Iterator[Iterator[Event]]:
    """The events of a job, as they come; comments are left out."""
    url = f"{job['cancel_url']}/events"
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    with requests.get(url, headers=sent, stream=True, timeout=40) as response:
        yield events_of(response.iter_lines(decode_unicode=True))


def events_of(lines: Iterator[str]) -> Iterator[Event]:
    while fields := list(itertools.takewhile(bool, lines)):
        if not fields[0].startswith(":"):
            values = [field.partition(": ")[2] for field in fields]
            yield Event(values[0], values[1], json.loads(values[2]))


def finished(job: dict[str, Any]) -> dict[str, Any]:
    return dict(get(job["cancel_url"], Prefer="wait=30").json())


def test_progress_is_told_while_the_job_runs(model):
    # When
    job = model.submit("report:0.4,page_4_of_10", "hold", "report:1", "last:x")
    shown = eventually(lambda: (found := get(job["cancel_url"])).json().get("progress") and found)

    # Then
    assert shown.json()["progress"] == {"share": 0.4, "text": "page 4 of 10"}
    assert shown.json()["status"] == "running"
    assert shown.json()["batch"]["worker"]
    assert get(job["cancel_url"], If_None_Match=shown.headers["etag"]).status_code == 304
    with ferry.Client(model.server.inference) as client:
        assert client.job(job["id"]).progress == ferry.JobProgress(0.4, "page 4 of 10")
    model.let_go()
    job = finished(job)
    assert job["status"] == "succeeded"
    assert job["batch"]["closed_by"] == "delay"
    assert get(job["result_url"]).content == b"x"


def test_progress_changes_the_tag_but_ends_no_wait_for_the_status(model):
    # Given
    job = model.submit("report:0.1", "sleep:0.7", "report:0.2", "hold", "last:x")
    first = eventually(lambda: (found := get(job["cancel_url"])).json().get("progress") and found)
    # When
    began_s = time.monotonic()
    waited = get(job["cancel_url"], Prefer="wait=1")
    # Then
    assert time.monotonic() - began_s >= 1
    assert waited.json()["progress"] == {"share": 0.2}
    assert waited.headers["etag"] != first.headers["etag"]
    model.let_go()
    assert finished(job)["status"] == "succeeded"


def test_last_report_of_a_burst_is_told(model):
    job = model.submit("report:0.1", "report:0.2", "report:0.3", "hold", "last:x")
    eventually(lambda: get(job["cancel_url"]).json().get("progress") == {"share": 0.3})
    model.let_go()


def test_listener_hears_of_progress_and_of_the_answer_in_pieces(model):
    # When
    job = model.submit("report:0.5,half", "send:one", "send:two", "hold", "send:three", "last:end")
    with listening(job) as events:
        heard = []
        for event in events:
            heard.append(event)
            if "".join(one.content.get("text", "") for one in pieces(heard)) == "onetwo":
                model.let_go()

    # Then
    kinds = [event.kind for event in heard]
    assert "running-1" in [event.id for event in heard]
    told = [one.content.get("progress", one.content) for one in heard if one.kind != "piece"]
    assert {"share": 0.5, "text": "half"} in told
    assert "".join(one.content["text"] for one in pieces(heard)) == "onetwothreeend"
    assert (heard[-1].id, heard[-1].kind) == ("succeeded-1", "status")
    assert get(heard[-1].content["result_url"]).content == b"onetwothreeend"
    assert kinds[-2] == "piece"


def pieces(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == "piece"]


def test_listener_goes_on_where_it_was_and_a_late_one_hears_of_the_end(model):
    # Given
    job = model.submit("send:one", "send:two", "hold", "last:end")
    with listening(job) as events:
        first = next(event for event in events if event.kind == "piece")
    length = len(first.content["text"])
    assert first.id == f"running-1-{length}"

    # When it comes again while the job runs
    with listening(job, Last_Event_ID=first.id) as events:
        eventually(lambda: get(f"{job['cancel_url']}").json()["status"] == "running")
        model.let_go()
        rest = list(events)

    # Then
    assert "".join(one.content["text"] for one in pieces(rest)) == "onetwoend"[length:]
    assert [one.id for one in rest if one.kind == "status"] == ["succeeded-1"]

    # And after the end
    with listening(job, Last_Event_ID=first.id) as events:
        assert "".join(e.content["text"] for e in pieces([*events])) == "onetwoend"[length:]
    with listening(job) as events:
        assert [event.id for event in events] == ["succeeded-1"]
    with listening(job, Last_Event_ID="succeeded-1") as events:
        assert list(events) == []


def test_job_that_streams_may_take_longer_than_the_time_limit(model):
    steps = ["send:a", "sleep:1.2", "send:b", "sleep:1.2", "send:c", "sleep:1.2", "last:d"]
    job = finished(model.submit(*steps))
    while job["status"] == "running":
        job = finished(job)
    assert (job["status"], job["attempts"]) == ("succeeded", 1)
    assert get(job["result_url"]).content == b"abcd"


def test_share_that_is_none_fails_the_prediction(model):
    job = finished(model.submit("report:7", "last:x"))
    assert job["status"] == "failed"


def test_progress_of_an_ordinary_request_goes_nowhere(model):
    answer = model.server.predict("telling", b"report:0.5,half last:x")
    assert (answer.status_code, answer.content) == (200, b"x")


def test_full_batch_says_so(model):
    jobs = [model.submit("hold", "last:x")]
    eventually(lambda: get(jobs[0]["cancel_url"]).json()["status"] == "running")
    jobs += [model.submit("last:x"), model.submit("last:x")]
    model.let_go()
    batches = [finished(job)["batch"] for job in jobs]
    assert [(one["size"], one["closed_by"]) for one in batches[1:]] == [(2, "full")] * 2
