from batching.models.spec import ModelSpec
from batching.models.statuses import QueueStatus, WorkerState, WorkerStatus
from ingress.rest.management_api import describe_version, list_page

NAMES = [f"m{number:03}" for number in range(250)]
URLS = {name: f"{name}.mar" for name in NAMES}


def page(names=NAMES, **parameters):
    document = list_page({name: URLS[name] for name in names}, parameters)
    return [model["modelName"] for model in document["models"]], document.get("nextPageToken")


def test_list_has_a_token_when_the_page_ends_at_the_last_name():
    assert page(NAMES[:2], limit="2") == (NAMES[:2], "2")
    assert page(NAMES[:2], limit="2", next_page_token="2") == ([], None)


def described(*arguments, is_default=False):
    return describe_version(*arguments, is_default=is_default, hosts={"node-a": "gpu-box"})


def test_describe_says_what_a_worker_and_the_queue_have_left():
    # Given
    spec = ModelSpec("m", "1.0", "m.mar", "h.py")
    worker = WorkerStatus("9000", "node-a", 0, WorkerState.READY, 42, "cuda:1", "now", 1024)
    # When
    document = described(spec, [worker], QueueStatus(3, 100, 3, 0.0, 0, 0.0, {}), is_default=True)
    # Then
    [found] = document["workers"]
    assert (found["gpuUsage"], found["node"], found["host"]) == ("gpuId::1", "node-a", "gpu-box")
    assert document["deviceType"] == "gpu"
    assert document["jobQueueStatus"] == {"remainingCapacity": 97, "pendingRequests": 3}
    assert document["isDefault"] is True


def test_worker_that_does_not_start_says_why():
    # Given
    spec = ModelSpec("m", "1.0", "m.mar", "h.py", config={"useVenv": True})
    worker = WorkerStatus(
        "9000", "node-a", 0, WorkerState.FAILED, 0, "cpu", "2026-01-01T00:00:00.000Z", error="No."
    )

    # When
    document = described(spec, [worker], QueueStatus(0, 100, 0, 0.0, 0, 0.0, {}))

    # Then
    assert document["workers"][0]["error"] == "No."
    # TorchServe has one word for all that are not ready, given up or not
    assert document["workers"][0]["status"] == "UNLOADING"
    assert document["workers"][0]["state"] == "FAILED"
    assert document["useVenv"] is True
