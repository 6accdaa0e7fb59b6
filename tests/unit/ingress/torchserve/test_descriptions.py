import pytest

from batching.models.spec import ModelSpec
from batching.models.statuses import QueueStatus, WorkerState, WorkerStatus
from ingress.torchserve.descriptions import describe_version, list_page

NAMES = [f"m{number:03}" for number in range(250)]
URLS = {name: f"{name}.mar" for name in NAMES}


def page(names=NAMES, **parameters):
    document = list_page(names, URLS, parameters)
    return [model["modelName"] for model in document["models"]], document.get("nextPageToken")


def test_list_has_a_token_when_the_page_ends_at_the_last_name():
    assert page(NAMES[:2], limit="2") == (NAMES[:2], "2")
    assert page(NAMES[:2], limit="2", next_page_token="2") == ([], None)


@pytest.mark.parametrize("limit", ["-1", "101", "many"])
def test_list_takes_a_wrong_limit_for_a_hundred(limit):
    assert page(limit=limit) == (NAMES[:100], "100")


def described(*arguments, is_default=False):
    return describe_version(*arguments, is_default=is_default, hosts={"node-a": "gpu-box"})


def test_describe_has_torchserves_keys_in_order():
    # Given
    spec = ModelSpec("m", "1.0", "m.mar", "h.py", batch_size=8, min_worker=1, max_worker=1)
    worker = WorkerStatus(
        "9000", "node-a", 0, WorkerState.READY, 42, "cpu", "2026-01-01T00:00:00.000Z", 1024
    )
    # When
    document = described(spec, [worker], QueueStatus(3, 100, 3, 0.0, {}), is_default=True)
    assert document["isDefault"] is True
    # Then
    assert list(document) == [
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
        "isDefault",
    ]
    assert document["workers"] == [
        {
            "id": "9000",
            "startTime": "2026-01-01T00:00:00.000Z",
            "status": "READY",
            "memoryUsage": 1024,
            "pid": 42,
            "gpu": False,
            "gpuUsage": "N/A",
            "node": "node-a",
            "host": "gpu-box",
        }
    ]
    assert document["jobQueueStatus"] == {"remainingCapacity": 97, "pendingRequests": 3}


def test_worker_that_does_not_start_says_why():
    # Given
    spec = ModelSpec("m", "1.0", "m.mar", "h.py", config={"useVenv": True})
    worker = WorkerStatus(
        "9000", "node-a", 0, WorkerState.FAILED, 0, "cpu", "2026-01-01T00:00:00.000Z", error="No."
    )

    # When
    document = described(spec, [worker], QueueStatus(0, 100, 0, 0.0, {}))

    # Then
    assert document["workers"][0]["error"] == "No."
    # TorchServe has one word for all that are not ready, given up or not
    assert document["workers"][0]["status"] == "UNLOADING"
    assert document["workers"][0]["state"] == "FAILED"
    assert document["useVenv"] is True
