"""Register, describe, list, scale, set-default, unregister: TorchServe's shapes and life cycles."""

import contextlib
import re
import time
from collections.abc import Iterator

import pytest

from tests.e2e.archives import Ledger, make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer, eventually

DESCRIBE_KEYS = [
    "modelName",
    "modelVersion",
    "modelUrl",
    "runtime",
    "minWorkers",
    "maxWorkers",
    "batchSize",
    "maxBatchDelay",
    "responseTimeout",
    "startupTimeout",
    "maxRetryTimeoutInSec",
    "clientTimeoutInMills",
    "parallelType",
    "parallelLevel",
    "deviceType",
    "continuousBatching",
    "useJobTicket",
    "useVenv",
    "stateful",
    "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec",
    "maxNumSequence",
    "maxSequenceJobQueueSize",
    "loadedAtStartup",
    "workers",
    "jobQueueStatus",
]
WORKER_KEYS = ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"]
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@contextlib.contextmanager
def cleaned_up(server: FerryServer, *paths: str) -> Iterator[None]:
    """These models are unregistered at the end, whatever happened."""
    try:
        yield
    finally:
        for path in paths:
            server.manage("DELETE", f"models/{path}")


@pytest.mark.slow
def test_synchronous_registration_answers_when_the_workers_are_ready(
    server: FerryServer, scripted: str
) -> None:
    with cleaned_up(server, "waited"):
        # When a model is registered with two workers, waiting for them
        parameters = {"model_name": "waited", "initial_workers": 2, "synchronous": "true"}
        response = server.manage("POST", "models", url=scripted, **parameters)

        # Then they are ready when the answer is there
        assert response.status_code == 200
        text = 'Model "waited" Version: 1.0 registered with 2 initial workers'
        assert response.json() == {"status": text}
        assert len(server.worker_pids("waited")) == 2
        assert server.predict("waited", b"hello").text == "hello"


def test_registration_without_workers_says_how_to_add_some(
    server: FerryServer, scripted: str
) -> None:
    with cleaned_up(server, "empty"):
        # When a model is registered without workers
        response = server.manage("POST", "models", url=scripted, model_name="empty")

        # Then the answer is TorchServe's
        assert response.status_code == 200
        assert response.json() == {
            "status": 'Model "empty" Version: 1.0 registered with 0 initial workers. Use scale'
            " workers API to add workers for the model."
        }
        assert server.describe("empty")["workers"] == []


@pytest.mark.slow
def test_asynchronous_registration_answers_202_before_the_workers_are_ready(
    server: FerryServer,
) -> None:
    # Given a model that takes two seconds to load
    archive, _ = make_scripted(server.store, "sluggish", load_delay="2")
    with cleaned_up(server, "sluggish"):
        # When it is registered without waiting
        parameters = {"initial_workers": 1, "synchronous": "false"}
        response = server.manage("POST", "models", url=archive, **parameters)

        # Then the answer comes first, while describe shows a worker that is not ready yet
        assert response.status_code == 202
        assert response.json() == {"status": "Processing worker updates..."}
        assert server.worker_pids("sluggish") == []

        # And a request that comes meanwhile waits for the worker
        assert server.predict("sluggish", b"patient").text == "patient"
        assert len(server.worker_pids("sluggish")) == 1


def test_registration_parameters_may_come_as_json(server: FerryServer, scripted: str) -> None:
    with cleaned_up(server, "as-json"):
        # When the parameters are a JSON body, and the query says something else
        body = {"url": scripted, "model_name": "as-json", "batch_size": 3, "max_batch_delay": 7}
        url = f"{server.management}/models?model_name=ignored&batch_size=9"
        response = server.http.post(url, json=body, timeout=30)

        # Then only the body counts
        assert response.status_code == 200
        described = server.describe("as-json")
        assert (described["batchSize"], described["maxBatchDelay"]) == (3, 7)


@pytest.mark.slow
def test_describe_has_torchserves_keys_in_its_order(server: FerryServer, scripted: str) -> None:
    # Given a model with one worker
    with server.model(scripted, "described", batch_size=4, max_batch_delay=25):
        # When it is described
        response = server.manage("GET", "models/described")

    # Then the answer is an array of one, with every key of TorchServe in its order
    assert response.headers["content-type"] == "application/json"
    [document] = response.json()
    assert list(document) == DESCRIBE_KEYS
    expected = {
        "modelName": "described",
        "modelVersion": "1.0",
        "modelUrl": scripted,
        "runtime": "python",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 4,
        "maxBatchDelay": 25,
        "responseTimeout": 120,
        "startupTimeout": 120,
        "loadedAtStartup": False,
        "jobQueueStatus": {"remainingCapacity": 100, "pendingRequests": 0},
    }
    assert document | expected == document
    [worker] = document["workers"]
    assert list(worker)[: len(WORKER_KEYS)] == WORKER_KEYS
    assert DATE.fullmatch(worker["startTime"])
    assert worker["status"] == "READY"
    assert worker["memoryUsage"] > 0


@pytest.mark.slow
def test_describe_shows_who_waits(server: FerryServer, scripted: str) -> None:
    # Given a worker that is busy with one of five requests
    with (
        server.model(scripted, "crowded", batch_size=1, max_batch_delay=0),
        Clients(server.inference, 5) as clients,
    ):
        clients.send("/predictions/crowded", ["sleep 0.15|"] * 5)

        # When the model is described, then four wait
        found = eventually(
            lambda: server.describe("crowded")["jobQueueStatus"]["pendingRequests"] == 4, 5
        )
        queue = server.describe("crowded")["jobQueueStatus"]
        assert [answer.status for answer in clients.receive(5)] == [200] * 5
    assert found
    assert queue["remainingCapacity"] + queue["pendingRequests"] == 100


def test_list_is_paged_and_sorted_by_name(server: FerryServer, scripted: str) -> None:
    names = ["page-c", "page-a", "page-b"]
    with cleaned_up(server, *names):
        # Given some models
        for name in names:
            server.register(scripted, model_name=name, initial_workers=0)

        # When they are listed two at a time
        pages = [server.manage("GET", "models", limit=2).json()]
        while len(pages[-1]["models"]) == 2:
            token = pages[-1]["nextPageToken"]
            pages.append(server.manage("GET", "models", limit=2, next_page_token=token).json())

        # Then all are there once, in order, and a token leads from page to page
        listed = [model["modelName"] for page in pages for model in page["models"]]
        assert listed == sorted(listed)
        assert len(set(listed)) == len(listed)
        assert set(names) <= set(listed)
        assert pages[0]["nextPageToken"] == "2"
        assert {"modelName": "page-a", "modelUrl": scripted} in [
            model for page in pages for model in page["models"]
        ]

        # And a token beyond the end is an empty page
        beyond = server.manage("GET", "models", next_page_token=10_000)
        assert (beyond.status_code, beyond.json()) == (200, {"models": []})


@pytest.mark.slow
def test_scaling_up_and_down_to_none_changes_who_answers(
    server: FerryServer, scripted: str, ledger: Ledger
) -> None:
    with server.model(scripted, "elastic", batch_size=1, max_batch_delay=0):
        # When the model is scaled up, waiting
        parameters = {"min_worker": 3, "synchronous": "true"}
        response = server.manage("PUT", "models/elastic", **parameters)

        # Then three workers are ready, and work at the same time
        assert response.status_code == 200
        assert response.json() == {"status": "Workers scaled to 3 for model: elastic"}
        pids = server.worker_pids("elastic")
        assert len(pids) == 3
        with Clients(server.inference, 3) as clients:
            exchange = clients.ask("/predictions/elastic", ["sleep 0.5|"] * 3)
        assert exchange.statuses == [200] * 3
        assert {call.pid for call in ledger.calls()} == set(pids)

        # When it is scaled down without waiting
        response = server.manage("PUT", "models/elastic/1.0", min_worker=1)

        # Then that is said at once and comes true
        assert response.status_code == 202
        assert response.json() == {"status": "Processing worker updates..."}
        assert eventually(lambda: len(server.describe("elastic")["workers"]) == 1, 10)

        # When it is scaled to none
        parameters = {"min_worker": 0, "synchronous": "true"}
        response = server.manage("PUT", "models/elastic/1.0", **parameters)

        # Then requests are refused at once
        text = "Workers scaled to 0 for model: elastic, version: 1.0"
        assert (response.status_code, response.json()) == (200, {"status": text})
        refused = server.predict("elastic", b"late")
        assert refused.status_code == 503
        assert refused.elapsed.total_seconds() < 1

        # And served again after it is scaled up again
        server.manage("PUT", "models/elastic", min_worker=1, synchronous="true")
        assert server.predict("elastic", b"back").text == "back"


@pytest.mark.slow
def test_scaling_to_none_answers_what_waits(server: FerryServer, scripted: str) -> None:
    # Given a busy worker and a queue
    with (
        server.model(scripted, "abandoned", batch_size=1, max_batch_delay=0),
        Clients(server.inference, 4) as clients,
    ):
        clients.send("/predictions/abandoned", ["sleep 0.5|"] * 4)
        assert eventually(
            lambda: server.describe("abandoned")["jobQueueStatus"]["pendingRequests"] == 3, 5
        )

        # When the model is scaled to none
        started = time.monotonic()
        server.manage("PUT", "models/abandoned", min_worker=0, synchronous="true")
        statuses = [answer.status for answer in clients.receive(4)]

    # Then the running request is answered and the waiting ones are refused; nobody hangs
    assert sorted(statuses) == [200, 503, 503, 503]
    assert time.monotonic() - started < 5


@pytest.mark.slow
def test_versions_are_served_side_by_side_and_the_default_can_move(server: FerryServer) -> None:
    # Given two versions of a model that tell themselves apart
    for version in ("1.0", "2.0"):
        archive, _ = make_scripted(server.store, "twofold", version=version)
        server.register(archive, response_timeout=int(float(version)) * 10)
    with cleaned_up(server, "twofold/2.0", "twofold/1.0", "twofold/2.0"):
        # Then both are served, and the first registered is the default
        assert server.predict("twofold/1.0", b"one").text == "one"
        assert server.predict("twofold/2.0", b"two").text == "two"
        every = server.manage("GET", "models/twofold/all").json()
        assert [version["modelVersion"] for version in every] == ["1.0", "2.0"]
        assert server.describe("twofold")["modelVersion"] == "1.0"

        # And the default cannot be removed while there is another one
        response = server.manage("DELETE", "models/twofold")
        assert response.status_code == 403
        assert response.json()["type"] == "InvalidModelVersionException"
        assert response.json()["message"] == "Cannot remove default version for model twofold"

        # When the other one is made the default
        response = server.manage("PUT", "models/twofold/2.0/set-default")

        # Then requests without a version go to it, and the old one can be removed
        text = 'Default version successfully updated for model "twofold" to "2.0"'
        assert (response.status_code, response.json()) == (200, {"status": text})
        assert server.describe("twofold")["modelVersion"] == "2.0"
        ledger = server.store / "twofold-2.0.ledger"
        ledger.write_text("")
        assert server.predict("twofold", b"now two").text == "now two"
        assert "now two" in ledger.read_text()
        response = server.manage("DELETE", "models/twofold/1.0")
        assert (response.status_code, response.json()) == (
            200,
            {"status": 'Model "twofold" unregistered'},
        )
        assert server.predict("twofold/1.0", b"gone").status_code == 404


@pytest.mark.slow
def test_unregistering_answers_what_is_queued_and_leaves_no_worker(
    server: FerryServer, scripted: str
) -> None:
    # Given a model with a busy worker and requests that wait
    server.register(scripted, model_name="leaving", batch_size=1, max_batch_delay=0)
    [pid] = server.worker_pids("leaving")
    with Clients(server.inference, 5) as clients:
        clients.send("/predictions/leaving", ["sleep 0.4|"] * 5)
        assert eventually(
            lambda: server.describe("leaving")["jobQueueStatus"]["pendingRequests"] == 4, 5
        )

        # When it is unregistered
        started = time.monotonic()
        response = server.manage("DELETE", "models/leaving")
        answers = clients.receive(5)
        seconds = time.monotonic() - started

    # Then everybody has an answer: the one at work its own, the others that it is gone
    assert response.json() == {"status": 'Model "leaving" unregistered'}
    assert sorted(answer.status for answer in answers) == [200, 404, 404, 404, 404]
    assert seconds < 5

    # And the model and its worker are gone
    assert server.manage("GET", "models/leaving").status_code == 404
    assert server.predict("leaving").status_code == 404
    assert not [line for line in server.process.family() if line.startswith(f"{pid} ")]


def test_ping_is_healthy_with_torchserves_headers(server: FerryServer, innocent: str) -> None:
    # When the server is asked how it is
    response = server.http.get(f"{server.inference}/ping", timeout=10)

    # Then it says so with the headers of every answer
    assert (response.status_code, response.json()) == (200, {"status": "Healthy"})
    assert response.text == '{\n  "status": "Healthy"\n}\n'
    assert re.fullmatch(r"[0-9a-f-]{36}", response.headers["x-request-id"])
    assert response.headers["pragma"] == "no-cache"
    assert response.headers["cache-control"] == "no-cache; no-store, must-revalidate, private"
    assert response.headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"
