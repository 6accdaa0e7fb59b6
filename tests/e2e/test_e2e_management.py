"""Register, describe and list in TorchServe's shapes."""

import re
import socket

import pytest

from tests.e2e.archives import Ledger, make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer
from tests.support import eventually

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


@pytest.mark.slow
def test_synchronous_registration_answers_when_the_workers_are_ready(
    server: FerryServer, scripted: str
) -> None:
    with server.cleaned_up("waited"):
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
    with server.cleaned_up("empty"):
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
    with server.cleaned_up("sluggish"):
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
    with server.cleaned_up("as-json"):
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
    assert list(document) == [*DESCRIBE_KEYS, "isDefault"]
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
        "isDefault": True,
        "jobQueueStatus": {"remainingCapacity": 100, "pendingRequests": 0},
    }
    assert document | expected == document
    [worker] = document["workers"]
    assert list(worker)[: len(WORKER_KEYS)] == WORKER_KEYS
    assert DATE.fullmatch(worker["startTime"])
    assert worker["host"] == socket.gethostname()
    assert worker["status"] == "READY"
    assert worker["memoryUsage"] > 0


@pytest.mark.slow
def test_describe_shows_who_waits(server: FerryServer, scripted: str, ledger: Ledger) -> None:
    # Given a worker that is busy with the first of five requests
    with (
        server.model(scripted, "crowded", batch_size=1, max_batch_delay=0),
        Clients(server.inference, 1) as first,
        Clients(server.inference, 4) as others,
    ):
        first.send("/predictions/crowded", ["sleep 1|"])
        eventually(ledger.calls)
        others.send("/predictions/crowded", ["behind it"] * 4)

        # When the model is described, then four wait
        eventually(lambda: server.describe("crowded")["jobQueueStatus"]["pendingRequests"] == 4, 5)
        queue = server.describe("crowded")["jobQueueStatus"]
        answers = first.receive(1) + others.receive(4)
        assert [answer.status for answer in answers] == [200] * 5
    assert queue["remainingCapacity"] + queue["pendingRequests"] == 100


def test_list_is_paged_and_sorted_by_name(server: FerryServer, scripted: str) -> None:
    names = ["page-c", "page-a", "page-b"]
    with server.cleaned_up(*names):
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
