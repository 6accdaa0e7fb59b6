import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest

from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import QueueStatus, WorkerState, WorkerStatus
from batching.store import keys
from batching.store.clients import connect
from ingress.models.registrar import WorkerProgress, WorkerWait
from ingress.rest.app import create_app
from ingress.rest.management_api import describe_version, list_page
from ingress.role import Role
from ingress.services import TimeLimits
from tests.support import eventually
from tests.unit.ingress.simulated_node import ERROR, SimulatedNode

ECHO_TEXT = 'Model "echo" Version: 1.0 registered with'


@pytest.fixture
def manager(ingress, node):
    ingress.archives.add("echo.mar", "echo")
    return ingress


@pytest.fixture
def later(ingress):
    """Sends a request to the management API; returns the future of its answer."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda *request: pool.submit(ingress.manage, *request)


KEY = VersionKey("echo", "1.0")


def status_of(answer):
    return answer.status_code, answer.json()["status"]


def error_of(answer):
    document = answer.json()
    assert list(document) == ["code", "type", "message"]
    assert document["code"] == answer.status_code
    return answer.status_code, document["type"], document["message"]


@pytest.mark.parametrize("patience", [TimeLimits(node_s=0.0)])
@pytest.mark.parametrize("asked", [("POST", "/models?url=echo.mar"), ("GET", "/nodes")])
def test_answer_says_that_redis_refuses_and_not_that_no_node_is_there(
    ingress, redis_url, caplog, asked
):
    # Given a Redis that takes no writes, and so no beat of any node
    with closing(connect(redis_url)) as client:
        client.config_set("min-replicas-to-write", 1)
        # When
        try:
            answer = ingress.manage(*asked)
        finally:
            client.config_set("min-replicas-to-write", 0)
    # Then
    code, _, message = error_of(answer)
    assert code == 503
    assert message.startswith("The request store refuses what it is asked")
    # When that is over
    missing = ingress.manage("POST", "/models?url=echo.mar")
    found = ingress.manage("GET", "/models")
    # Then
    assert error_of(missing)[2] == "No node is running to load models. Start one: ferry node"
    assert found.status_code == 200
    refused, again = [line for line in caplog.messages if line.startswith("Redis ")]
    assert "verb=manage" in refused
    assert "Not enough good replicas to write" in refused
    assert again.startswith("Redis answers again")


def test_register_refuses_a_wrong_parameter_before_it_looks_for_the_archive(manager):
    answer = manager.manage("POST", "/models?url=no.mar&batch_size=0")
    text = "batch_size must be 1 or more, not 0."
    assert error_of(answer) == (400, "BadRequestException", text)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"continuousBatching": True}, "a batch stays as it was formed"),
        ({"sequenceBatching": True}, "may go to different workers"),
        ({"asyncCommunication": True}, "answer a whole batch at once"),
        ({"parallelType": "tp"}, "parallelType: tp has no counterpart"),
        ({"torchrun": {"nproc-per-node": 4}}, "cannot be spread over several processes"),
    ],
)
def test_register_is_refused_when_the_archive_needs_what_is_left_out(manager, config, expected):
    # Given
    manager.archives.add("asking.mar", "asking", **config)
    # When
    status, kind, message = error_of(manager.manage("POST", "/models?url=asking.mar"))
    # Then
    assert (status, kind) == (400, "InvalidModelException")
    assert expected in message
    assert sorted(manager.registry.snapshot()) == []


def test_register_waits_for_a_node_that_comes_a_little_later(ingress, later, redis_url):
    ingress.archives.add("echo.mar", "echo")
    with closing(connect(redis_url)) as client, closing(SimulatedNode(redis_url)) as node:
        # Given a server as it is just after its start
        before = client.pubsub_numsub(keys.CHANGES)[0][1]
        asked = later("POST", "/models?url=echo.mar")
        eventually(lambda: client.pubsub_numsub(keys.CHANGES)[0][1] > before)
        # When
        node.start()
        # Then
        assert asked.result(10).status_code == 200


@pytest.mark.parametrize(("behaviour", "status"), [("failed", 500), ("out of memory", 507)])
def test_register_leaves_nothing_but_a_reason_for_operators_when_the_workers_fail(
    manager, node, caplog, behaviour, status
):
    # Given a listener that only this machine's users reach, and one for others
    node.behaviour = behaviour
    apps = [
        create_app(manager.services, [Role.MANAGEMENT], is_private=is_private).test_client()
        for is_private in (True, False)
    ]
    # When
    answers = [app.post("/models?url=echo.mar&initial_workers=1") for app in apps]
    # Then
    text = "Failed to start workers for model echo version: 1.0"
    assert [answer.json["message"] for answer in answers] == [f"{text}\n{ERROR}", text]
    kinds = {(answer.status_code, answer.json["type"]) for answer in answers}
    assert kinds == {(status, "InternalServerException")}
    assert sorted(manager.registry.snapshot()) == []
    assert f"not started model=echo version=1.0: {ERROR}" in caplog.text


def registering(manager, later):
    """Starts a registration that waits for its worker."""
    asked = later("POST", "/models?url=echo.mar&initial_workers=1")
    eventually(lambda: manager.registry.workers(KEY))
    return asked


def test_register_removes_no_other_registration_than_its_own(manager, node, later):
    # Given
    node.behaviour = "loading"
    asked = registering(manager, later)
    # When another client registers another model under that name
    manager.registry.remove(KEY)
    other = ModelSpec(*KEY, "other.mar", "h.py")
    manager.registry.create(other)
    # Then
    text = "Model version: 1.0 of model: echo was unregistered meanwhile"
    assert error_of(asked.result(10)) == (404, "ModelVersionNotFoundException", text)
    assert manager.registry.specs() == [other]


@pytest.mark.parametrize("patience", [TimeLimits(grace_s=0.1)])
def test_time_to_unpack_is_not_time_to_load(manager, node, later):
    # Given
    node.behaviour = "unpacking"
    manager.register("echo", startup_timeout_s=0.2)
    asked = later("PUT", "/models/echo?min_worker=1&synchronous=true")
    # When it takes longer than loading may
    wait([asked], 0.6)
    assert not asked.done()
    node.recover()
    # Then
    assert asked.result(10).status_code == 200


def test_time_to_install_is_no_time_to_load(manager, node):
    # Given
    node.behaviour = "loading"
    spec = manager.register("echo", startup_timeout_s=0.2)
    words = {"failures_before": {}, "version_text": "1.0", "install_patience_s": 0.5}
    # When
    started_s = time.monotonic()
    patience = TimeLimits(grace_s=0.1)
    waiting = WorkerWait(manager.registry, should_stop=lambda: False, patience=patience)
    progress = waiting.for_workers(spec, **words)
    # Then
    assert progress is WorkerProgress.NONE
    assert time.monotonic() - started_s >= 0.8


def test_register_ends_when_the_server_drains(manager, node, later):
    # Given
    node.behaviour = "loading"
    asked = registering(manager, later)
    # When
    manager.services.lifecycle.is_draining = True
    # Then
    text = "The server is shutting down."
    assert error_of(asked.result(10)) == (503, "ServiceUnavailableException", text)
    # And another server can register it
    assert manager.registry.specs() == []


def test_register_goes_on_when_redis_was_away(manager, node, later, redis_url):
    # Given
    node.behaviour = "loading"
    asked = registering(manager, later)
    # When the connection that announces changes breaks
    client = connect(redis_url)
    eventually(lambda: client.pubsub_numsub(keys.CHANGES)[0][1] == 2)
    client.client_kill_filter(_type="pubsub")
    wait([asked], 0.3)
    node.recover()
    # Then
    assert status_of(asked.result(10)) == (200, f"{ECHO_TEXT} 1 initial workers")
    client.close()


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:8081", "null"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/models?url=echo.mar"), ("DELETE", "/models/kept")]
)
def test_web_pages_change_nothing(manager, method, path, origin):
    # Given
    manager.register("kept", min_worker=0, max_worker=0)
    # When
    answer = manager.manage(method, path, headers={"Origin": origin})
    # Then
    assert answer.status_code == 403
    assert sorted(manager.registry.snapshot()) == ["kept"]


@pytest.mark.parametrize("patience", [TimeLimits(grace_s=0.1)])
def test_scale_says_206_when_only_some_workers_are_ready_in_time(manager, node):
    # Given a worker that is ready, and no other that will be
    manager.register("echo", startup_timeout_s=1)
    node.behaviour = "loading"
    # When
    answer = manager.manage("PUT", "/models/echo?min_worker=2&synchronous=true")
    # Then
    assert status_of(answer) == (206, "Workers scaling in progress...")


def test_scale_fails_at_the_first_worker_that_fails_and_keeps_the_model(manager, node, caplog):
    # Given
    manager.register("echo")
    node.behaviour = "failed"
    # When
    answer = manager.manage("PUT", "/models/echo?min_worker=2&synchronous=true")
    # Then
    assert error_of(answer) == (
        500,
        "InternalServerException",
        "Failed to start workers for model echo version: null",
    )
    assert sorted(manager.registry.snapshot()) == ["echo"]
    # And the log names the version
    assert f"not started model=echo version=1.0: {ERROR}" in caplog.text


@pytest.mark.parametrize("version", ["1.0+cpu", "1.0%2Bcpu"])
def test_name_with_an_underscore_and_version_with_a_plus_are_served(version, manager):
    # Given
    manager.archives.add("own.mar", "_own", "1.0+cpu")
    manager.archives.add("other.mar", "_own", "2.0")
    for url in ("own.mar", "other.mar"):
        assert manager.manage("POST", f"/models?url={url}&initial_workers=1").status_code == 200
    # When
    [document] = manager.manage("GET", f"/models/_own/{version}").json()
    answers = [
        manager.predict(f"/predictions/_own/{version}"),
        manager.manage("PUT", f"/models/_own/{version}?min_worker=2&synchronous=true"),
        manager.manage("PUT", "/models/_own/2.0/set-default"),
        manager.manage("DELETE", f"/models/_own/{version}"),
    ]
    # Then
    assert document["modelVersion"] == "1.0+cpu"
    assert [answer.status_code for answer in answers] == [200] * 4


def test_unregister_does_not_wait_for_the_workers_of_a_new_registration(manager, node, later):
    # Given a worker that does not go at once
    spec = manager.register("echo")
    node.close()
    asked = later("DELETE", "/models/echo")
    eventually(lambda: manager.registry.get("echo") is None)
    # When
    manager.registry.create(spec)
    # Then
    assert status_of(asked.result(10)) == (200, 'Model "echo" unregistered')
    assert manager.registry.resolve("echo", None) == spec


def test_unregister_ends_a_model_whose_record_cannot_be_read(manager, redis_url):
    # Given
    spec = manager.register("echo")
    client = connect(redis_url)
    client.hset(keys.MODELS, "echo", b"hello")
    manager.registry.announce("echo")
    said = (
        500,
        "InternalServerException",
        "What is registered as echo cannot be read. Unregister the model as a whole, and register "
        "it again.",
    )
    # When / Then: it is unknown which versions the model has
    for method, path in (
        ("GET", "/models/echo"),
        ("PUT", "/models/echo?min_worker=2"),
        ("POST", "/models?url=echo.mar"),
        ("DELETE", "/models/echo/1.0"),
    ):
        assert error_of(manager.manage(method, path)) == said
    # When
    answer = manager.manage("DELETE", "/models/echo")
    # Then
    assert status_of(answer) == (200, 'Model "echo" unregistered')
    assert manager.manage("GET", "/models/echo").status_code == 404
    eventually(lambda: manager.registry.workers(spec.key) == [])
    assert status_of(manager.manage("POST", "/models?url=echo.mar"))[0] == 200
    client.close()


@pytest.mark.parametrize(
    ("is_draining", "error"),
    [
        (False, (408, "RequestTimeoutException", "Timed out while cleaning resources: echo")),
        (True, (503, "ServiceUnavailableException", "The server is shutting down.")),
    ],
)
def test_unregister_does_not_wait_for_ever_for_workers_that_stay(
    manager, node, later, is_draining, error
):
    # Given workers of a node that has stopped listening
    manager.register("echo")
    node.close()
    asked = later("DELETE", "/models/echo")
    eventually(lambda: manager.registry.get("echo") is None)
    # When
    manager.services.lifecycle.is_draining = is_draining
    # Then
    assert error_of(asked.result(10)) == error


# --- documents

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
