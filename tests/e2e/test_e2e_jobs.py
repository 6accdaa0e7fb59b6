"""Jobs over HTTP, as curl would ask for them."""

from pathlib import Path
from typing import Any

import pytest
import requests

import ferry
from tests.e2e.archives import Ledger, make_archive
from tests.e2e.ferry_process import FerryServer
from tests.support import eventually
from tests.topology.whole_suite import IS_ON_CLUSTER

STREAMING = Path(__file__).with_name("streaming_handler.py")
ASYNC = {"Prefer": "respond-async"}
WAITING = {"queued", "running"}

pytestmark = pytest.mark.slow


@pytest.fixture
def model(server, scripted, ledger):
    """Serves the scripted model by one worker, which takes one request at a time."""
    with server.model(scripted, "worked", batch_size=1) as name:
        yield name


def ask(method: str, url: str, **options: Any) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.request(method, url, timeout=40, **options)


def submit(server: FerryServer, body: str, model: str = "worked", **headers: str) -> dict[str, Any]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    response = server.predict(model, body.encode(), headers=ASYNC | sent)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    return job


def finished(job: dict[str, Any]) -> dict[str, Any]:
    """The job once it is over."""
    answer = eventually(
        lambda: (found := ask("GET", job["cancel_url"]).json())["status"] not in WAITING and found,
        20,
    )
    return dict(answer)


def test_prediction_becomes_a_job_and_its_result_is_what_it_would_have_been(server, model):
    # When a client does not wait
    response = server.predict(model, b"hello", headers=ASYNC)

    # Then it has the job at once
    job = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == job["cancel_url"]
    assert response.headers["preference-applied"] == "respond-async"
    assert int(response.headers["retry-after"]) >= 1
    assert (job["model"], job["version"]) == (model, "1.0")
    assert job["status"] in {"queued", "running", "succeeded"}
    assert job["created_at"].endswith("Z")

    # And finds it finished
    job = finished(job)
    assert job["status"] == "succeeded"
    assert job["attempts"] == 1
    # And `ferry up` has its Redis write a file, from the first job on
    if not IS_ON_CLUSTER:
        eventually(lambda: "durable" not in ask("GET", job["cancel_url"]).json(), 10)
    assert job["batch"]["size"] == 1
    assert job["created_at"] <= job["started_at"] <= job["finished_at"] < job["expires_at"]

    # And the result is the synchronous answer but for its id
    result, direct = ask("GET", job["result_url"]), server.predict(model, b"hello")
    assert (result.status_code, result.content) == (direct.status_code, direct.content)
    own = {"x-request-id", "date"}
    assert {name for name in result.headers} == {name for name in direct.headers}
    assert {k: v for k, v in result.headers.items() if k.lower() not in own} == {
        k: v for k, v in direct.headers.items() if k.lower() not in own
    }


def test_client_that_waits_for_a_while_gets_the_answer_or_the_job(server, model, ledger):
    # When the answer is there in time
    in_time = server.predict(model, b"hello", headers={"Prefer": "respond-async, wait=20"})
    assert (in_time.status_code, in_time.content) == (200, b"hello")
    assert in_time.headers["preference-applied"] == "wait=20"

    # When it is not
    late = server.predict(model, b"hold|x", headers={"Prefer": "respond-async, wait=1"})
    job = late.json()
    assert (late.status_code, job["status"] in WAITING) == (202, True)
    assert ask("GET", job["result_url"]).status_code == 202
    ledger.let_go()
    assert ask("GET", job["result_url"], headers={"Prefer": "wait=30"}).content == b"hold|x"


def test_model_gives_a_job_to_clients_that_would_wait_for_too_long(server, scripted, ledger):
    with server.model(scripted, "worked", batch_size=1, async_after=1) as model:
        # When the answer is there in time
        in_time = server.predict(model, b"hello")
        assert (in_time.status_code, in_time.content) == (200, b"hello")
        assert "preference-applied" not in in_time.headers

        # When it is not
        late = server.predict(model, b"hold|x", headers={"Accept": "text/*, */*;q=0.1"})
        assert (late.status_code, late.json()["status"] in WAITING) == (202, True)
        assert "preference-applied" not in late.headers
        ledger.let_go()
        assert finished(late.json())["status"] == "succeeded"

        # And a client that would not understand waits on
        patient = server.predict(model, b"sleep 1.5|x", headers={"Accept": "image/png"})
        assert (patient.status_code, patient.content) == (200, b"sleep 1.5|x")


def test_failed_job_says_why_and_is_tried_again_by_the_operator(server, model, ledger):
    # Given
    job = finished(submit(server, "raise value|x"))
    assert job["status"] == "failed"
    assert job["error"] == {
        "code": 503,
        "type": "InternalServerException",
        "message": "Prediction failed",
    }
    direct = server.predict(model, b"raise value|x")
    result = ask("GET", job["result_url"])
    assert (result.status_code, result.content) == (direct.status_code, direct.content)

    # When
    url = f"{server.management}/jobs/{job['id']}/retry"
    again = ask("POST", url)

    # Then
    assert (again.status_code, again.json()["id"]) == (202, job["id"])
    assert finished(job)["status"] == "failed"
    bodies = [body for call in ledger.calls() for body in call.bodies]
    assert bodies.count("raise value|x") == 3
    refused = ask("POST", f"{server.management}/jobs/{finished(submit(server, 'x'))['id']}/retry")
    assert refused.status_code == 409
    assert "succeeded" in refused.json()["message"]


def test_operator_lists_retries_and_deletes_many(server, scripted, ledger):
    # A name of its own: jobs of other tests stay in the lists of theirs.
    with server.model(scripted, "listed", batch_size=1) as model:
        check_lists(server, model, ledger)


def check_lists(server: FerryServer, model: str, ledger: Ledger) -> None:
    # Given
    jobs = [submit(server, f"raise value|{number}", model) for number in range(5)]
    for job in jobs:
        finished(job)
    ids = [job["id"] for job in reversed(jobs)]
    url = f"{server.management}/jobs"

    # When / Then the newest are first, a page at a time
    query = {"model": model, "status": "failed"}
    page = ask("GET", url, params={**query, "limit": 3}).json()
    rest = ask("GET", url, params={**query, "limit": 3, "cursor": page["next_cursor"]}).json()
    for found in page["jobs"]:
        assert found["result_url"].startswith(server.management)
        assert ask("GET", found["cancel_url"]).json()["id"] == found["id"]
        assert ask("GET", found["result_url"]).status_code == 503
    listed = [job["id"] for job in page["jobs"] + rest["jobs"]]
    assert listed == ids
    assert "next_cursor" not in rest
    assert ask("GET", url, params={"model": model, "status": "queued"}).json() == {"jobs": []}
    assert ask("GET", url, params={"status": "lost"}).status_code == 400
    assert ask("GET", url, params={"cursor": "x"}).status_code == 400

    # And all are tried again, or deleted
    assert ask("POST", f"{url}/retry", params=query).json() == {"jobs": 5}
    for job in jobs:
        finished(job)
    assert len(ledger.calls()) == 10
    assert ask("DELETE", url).status_code == 400
    assert ask("DELETE", url, params=query).json() == {"jobs": 5}
    assert ask("GET", jobs[0]["result_url"]).status_code == 410


def test_progress_is_told_while_the_job_runs_and_its_pieces_are_put_together(server):
    # Given
    ledger = server.store / "telling.ledger"
    ledger.touch()
    files = {"handler.py": STREAMING.read_text(encoding="utf-8"), "ledger": str(ledger)}
    archive = make_archive(server.store, "telling", files)
    with server.model(archive, "telling", batch_size=2, max_batch_delay=200):
        # When
        job = submit(server, "report:0.4,page_4_of_10 send:a hold report:1 last:x", "telling")
        eventually(lambda: ask("GET", job["cancel_url"]).json().get("progress"))
        shown = ask("GET", job["cancel_url"])

        # Then
        assert shown.json()["progress"] == {"share": 0.4, "text": "page 4 of 10"}
        assert (shown.json()["status"], bool(shown.json()["batch"]["worker"])) == ("running", True)
        with ferry.Client(server.inference) as client:
            assert client.job(job["id"]).progress == ferry.JobProgress(0.4, "page 4 of 10")
        Path(f"{ledger}.go").touch()
        job = finished(job)
        assert (job["status"], job["batch"]["closed_by"]) == ("succeeded", "delay")
        result = ask("GET", job["result_url"])
        assert (result.content, result.headers["content-type"]) == (b"ax", "text/plain")
