"""What a job tells while it runs: its progress, and its batch."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import ferry
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer
from tests.support import eventually

HANDLER = Path(__file__).with_name("streaming_handler.py")
ASYNC = {"Prefer": "respond-async"}

pytestmark = pytest.mark.slow


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


def test_full_batch_says_so(model):
    jobs = [model.submit("hold", "last:x")]
    eventually(lambda: get(jobs[0]["cancel_url"]).json()["status"] == "running")
    jobs += [model.submit("last:x"), model.submit("last:x")]
    model.let_go()
    batches = [finished(job)["batch"] for job in jobs]
    assert [(one["size"], one["closed_by"]) for one in batches[1:]] == [(2, "full")] * 2
