import threading
import time
from contextlib import closing

import pytest

from batching.models.spec import ModelSpec, VersionKey
from batching.store import keys
from batching.store.clients import connect
from batching.store.keys import VersionKeys
from ingress.models import registrar
from ingress.models.worker_wait import Progress, WorkerWait
from tests.support import eventually
from tests.unit.ingress.simulated_node import ERROR, SimulatedNode

ECHO_TEXT = 'Model "echo" Version: 1.0 registered with'


@pytest.fixture
def manager(ingress, node):
    ingress.archives.add("echo.mar", "echo")
    return ingress


KEY = VersionKey("echo", "1.0")


def status_of(answer):
    return answer.status_code, answer.json()["status"]


def error_of(answer):
    document = answer.json()
    assert list(document) == ["code", "type", "message"]
    assert document["code"] == answer.status_code
    return answer.status_code, document["type"], document["message"]


def test_register_waits_for_the_workers_by_default(manager):
    # When
    answer = manager.manage("POST", "/models?url=echo.mar&initial_workers=2&batch_size=8")
    # Then
    assert status_of(answer) == (200, f"{ECHO_TEXT} 2 initial workers")
    [document] = manager.manage("GET", "/models/echo").json()
    assert document["batchSize"] == 8
    assert [worker["status"] for worker in document["workers"]] == ["READY", "READY"]


def test_failed_management_request_is_in_the_log_by_the_id_that_its_client_has(
    ingress, monkeypatch, caplog
):
    # Given no node
    monkeypatch.setattr(registrar, "NODE_TIMEOUT_S", 0.0)
    # When
    request_id = ingress.manage("POST", "/models?url=secret").headers["x-request-id"]
    # Then
    said = f"failed request={request_id} status=503 reason=unavailable method=POST path=/models"
    eventually(lambda: said in caplog.messages)
    # When it is the client's own fault, or a probe
    ingress.manage("GET", "/models/nobody")
    ingress.predict("/readyz", method="GET")
    # Then
    assert [text for text in caplog.messages if text.startswith("failed ")] == [said]


@pytest.mark.parametrize("asked", [("POST", "/models?url=echo.mar"), ("GET", "/nodes")])
def test_answer_says_that_redis_refuses_and_not_that_no_node_is_there(
    ingress, redis_url, monkeypatch, caplog, asked
):
    # Given a Redis that takes no writes, and so no beat of any node
    monkeypatch.setattr(registrar, "NODE_TIMEOUT_S", 0.0)
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


def test_register_without_workers_says_how_to_add_some(manager):
    answer = manager.manage("POST", "/models?url=echo.mar&synchronous=false")
    assert status_of(answer) == (
        200,
        f"{ECHO_TEXT} 0 initial workers. Use scale workers API to add workers for the model.",
    )


def test_register_does_not_wait_when_asked_not_to(manager, node):
    node.behaviour = "loading"
    answer = manager.manage("POST", "/models?url=echo.mar&initial_workers=1&synchronous=false")
    assert status_of(answer) == (202, "Processing worker updates...")
    # Who asks now is not refused, as a node has taken it on.
    assert len(manager.registry.workers(KEY)) == 1


def test_register_takes_only_the_body_when_it_is_json(manager):
    # When
    answer = manager.manage(
        "POST", "/models?url=other.mar&batch_size=3", json={"url": "echo.mar", "batch_size": 5}
    )
    # Then
    assert answer.status_code == 200
    assert manager.registry.resolve("echo", None).batch_size == 5


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/models", (400, "BadRequestException", "Parameter url is required.")),
        ("/models?url=", (404, "ModelNotFoundException", "empty url")),
        ("/models?url=no.mar", (404, "ModelNotFoundException", "Model not found at: no.mar")),
        (
            "/models?url=echo.mar&runtime=LISP",
            (400, "BadRequestException", "Invalid RuntimeType value: LISP"),
        ),
        (
            "/models?url=no.mar&batch_size=0",  # before anything is looked for, or downloaded
            (400, "BadRequestException", "batch_size must be 1 or more, not 0."),
        ),
    ],
)
def test_register_is_refused(manager, path, error):
    assert error_of(manager.manage("POST", path)) == error
    assert sorted(manager.registry.snapshot()) == []


LEFT_OUT = {
    "continuous": ({"continuousBatching": True}, "a batch stays as it was formed"),
    "sequences": ({"sequenceBatching": True}, "may go to different workers"),
    "asynchronous": ({"asyncCommunication": True}, "answer a whole batch at once"),
    "parallel": ({"parallelType": "tp"}, "parallelType: tp has no counterpart"),
    "torchrun": ({"torchrun": {"nproc-per-node": 4}}, "cannot be spread over several processes"),
}


@pytest.mark.parametrize(("config", "expected"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_register_is_refused_when_the_archive_asks_for_what_is_left_out(manager, config, expected):
    # Given
    manager.archives.add("asking.mar", "asking", **config)
    # When
    status, kind, message = error_of(manager.manage("POST", "/models?url=asking.mar"))
    # Then
    assert (status, kind) == (400, "InvalidModelException")
    assert expected in message
    assert sorted(manager.registry.snapshot()) == []


def test_register_takes_an_archive_that_asks_for_nothing_of_it(manager):
    # Given
    config = {"continuousBatching": False, "parallelType": "custom", "torchrun": None}
    manager.archives.add("modest.mar", "modest", **config)
    # When / Then
    assert manager.manage("POST", "/models?url=modest.mar").status_code == 200


def test_register_logs_what_counts_for_nothing_in_the_config(manager, caplog):
    # Given
    manager.archives.add("odd.mar", "odd", batchSize="four", responseTimeout=60, minWorkers=2)
    # When
    answer = manager.manage("POST", "/models?url=odd.mar")
    # Then
    assert answer.status_code == 200
    assert [one for one in caplog.messages if "ignored setting" in one] == [
        "ignored setting model=odd version=1.0: "
        "batchSize: 'four' is ignored, it should be of type int",
        "ignored setting model=odd version=1.0: "
        "minWorkers and maxWorkers are ignored: give both, 0 < minWorkers <= maxWorkers",
    ]


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_register_is_refused_when_its_json_is_no_object(manager, body):
    answer = manager.manage(
        "POST", "/models", data=body, headers={"content-type": "application/json"}
    )
    assert error_of(answer)[:2] == (400, "BadRequestException")


def test_register_is_refused_when_the_version_is_there(manager):
    # Given
    manager.manage("POST", "/models?url=echo.mar")
    # When
    answer = manager.manage("POST", "/models?url=echo.mar")
    # Then
    assert error_of(answer) == (
        409,
        "ConflictStatusException",
        "Model version 1.0 is already registered for model echo",
    )


def test_register_says_what_to_do_when_no_node_comes(ingress, monkeypatch):
    monkeypatch.setattr(registrar, "NODE_TIMEOUT_S", 0.3)
    answer = ingress.manage("POST", "/models?url=echo.mar")
    assert error_of(answer)[:2] == (503, "ServiceUnavailableException")
    assert "ferry node" in answer.json()["message"]


def test_register_waits_for_a_node_that_comes_a_little_later(ingress, redis_url):
    ingress.archives.add("echo.mar", "echo")
    statuses = []

    def register():
        statuses.append(ingress.manage("POST", "/models?url=echo.mar").status_code)

    def listeners():
        return client.pubsub_numsub(keys.CHANGES)[0][1]

    with closing(connect(redis_url)) as client, closing(SimulatedNode(redis_url)) as node:
        # Given a server as it is just after its start
        before = listeners()
        waiting = threading.Thread(target=register)
        waiting.start()
        eventually(lambda: listeners() > before)
        # When
        node.start()
        waiting.join(10)
    # Then
    assert statuses == [200]


@pytest.mark.parametrize(("behaviour", "status"), [("failed", 500), ("out of memory", 507)])
def test_register_leaves_nothing_but_a_reason_in_the_log_when_the_workers_fail(
    manager, node, caplog, behaviour, status
):
    # Given
    node.behaviour = behaviour
    # When
    answer = manager.manage("POST", "/models?url=echo.mar&initial_workers=1")
    # Then
    assert error_of(answer) == (
        status,
        "InternalServerException",
        "Failed to start workers for model echo version: 1.0",
    )
    assert sorted(manager.registry.snapshot()) == []
    assert f"not started model=echo version=1.0: {ERROR}" in caplog.text


class Asked(threading.Thread):
    """A request of the management API that is under way."""

    def __init__(self, manager, *request):
        super().__init__()
        self._request, self._manager = request, manager
        self.start()

    def run(self):
        self._answer = self._manager.manage(*self._request)

    def answer(self):
        self.join(10)
        return self._answer


def registering(manager):
    """A registration that waits for its worker."""
    asked = Asked(manager, "POST", "/models?url=echo.mar&initial_workers=1")
    eventually(lambda: manager.registry.workers(KEY))
    return asked


def test_register_removes_no_other_registration_than_its_own(manager, node):
    # Given
    node.behaviour = "loading"
    asked = registering(manager)
    # When somebody else registers another one under that name
    manager.registry.remove(KEY)
    other = ModelSpec(*KEY, "other.mar", "h.py")
    manager.registry.create(other)
    # Then
    text = "Model version: 1.0 of model: echo was unregistered meanwhile"
    assert error_of(asked.answer()) == (404, "ModelVersionNotFoundException", text)
    assert manager.registry.specs() == [other]


def test_register_ends_when_somebody_unregisters_it_meanwhile(manager, node):
    # Given
    node.behaviour = "loading"
    manager.registry.mark()
    asked = registering(manager)
    # When
    manager.registry.remove(KEY)
    # Then
    assert error_of(asked.answer())[0] == 404
    assert manager.registry.specs() == []


def test_register_keeps_what_somebody_scales_to_nothing_meanwhile(manager, node):
    # Given
    node.behaviour = "loading"
    asked = registering(manager)
    # When
    manager.registry.scale(KEY, 0, 1)
    # Then
    assert asked.answer().status_code == 200
    assert [spec.min_worker for spec in manager.registry.specs()] == [0]


def test_registration_goes_on_when_redis_has_forgotten_it_until_nodes_restore_it(manager, node):
    # Given
    node.behaviour = "loading"
    asked = registering(manager)
    known = manager.registry.snapshot()
    # When
    manager.registry.announce("")  # it looks, and finds nothing
    manager.services.registry._client.delete(keys.MODELS)
    asked.join(0.2)
    manager.registry.restore(known.values())
    node.recover()
    # Then
    assert asked.answer().status_code == 200


def test_time_to_unpack_is_not_time_to_load(manager, node, monkeypatch):
    # Given
    monkeypatch.setattr("ingress.models.worker_wait.STARTUP_GRACE_S", 0.1)
    node.behaviour = "unpacking"
    manager.register("echo", startup_timeout_s=0.2)
    asked = Asked(manager, "PUT", "/models/echo?min_worker=1&synchronous=true")
    # When it takes longer than loading may
    asked.join(0.6)
    assert asked.is_alive()
    node.recover()
    # Then
    assert asked.answer().status_code == 200


def test_time_to_install_is_no_time_to_load(manager, node, monkeypatch):
    # Given
    monkeypatch.setattr("ingress.models.worker_wait.STARTUP_GRACE_S", 0.1)
    node.behaviour = "loading"
    spec = manager.register("echo", startup_timeout_s=0.2)
    words = {"failures_before": {}, "version_text": "1.0", "install_patience_s": 0.5}
    # When
    started_s = time.monotonic()
    progress = WorkerWait(manager.registry, lambda: False).for_workers(spec, **words)
    # Then
    assert progress is Progress.NONE
    assert time.monotonic() - started_s >= 0.8


def test_register_ends_when_the_server_drains(manager, node):
    # Given
    node.behaviour = "loading"
    asked = registering(manager)
    # When
    manager.services.lifecycle.is_draining = True
    # Then
    text = "The server is shutting down."
    assert error_of(asked.answer()) == (503, "ServiceUnavailableException", text)
    # And it can be asked of another one
    assert manager.registry.specs() == []


def test_register_goes_on_when_redis_was_away(manager, node, redis_url):
    # Given
    node.behaviour = "loading"
    asked = registering(manager)
    # When the connection over which changes are told breaks
    client = connect(redis_url)
    eventually(lambda: client.pubsub_numsub(keys.CHANGES)[0][1] == 2)
    client.client_kill_filter(_type="pubsub")
    asked.join(0.3)
    node.recover()
    # Then
    assert status_of(asked.answer()) == (200, f"{ECHO_TEXT} 1 initial workers")
    client.close()


def test_unregister_goes_on_when_redis_was_away(manager, node, redis_url):
    # Given workers of a node that does not hear of it
    spec = manager.register("echo")
    node.close()
    asked = Asked(manager, "DELETE", "/models/echo")
    client = connect(redis_url)
    eventually(lambda: client.pubsub_numsub(keys.CHANGES)[0][1] == 2)
    # When the connection over which changes are told breaks
    client.client_kill_filter(_type="pubsub")
    asked.join(0.3)
    client.delete(VersionKeys.of(spec.key).workers)
    # Then
    assert status_of(asked.answer()) == (200, 'Model "echo" unregistered')
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


def test_scale_does_not_wait_by_default(manager):
    manager.register("echo")
    answer = manager.manage("PUT", "/models/echo?min_worker=2")
    assert status_of(answer) == (202, "Processing worker updates...")


def test_scale_waits_for_more_and_for_fewer_workers(manager):
    # Given
    spec = manager.register("echo")
    # When
    more = manager.manage("PUT", "/models/echo?min_worker=3&synchronous=TRUE")
    # Then
    assert status_of(more) == (200, "Workers scaled to 3 for model: echo")
    assert len(manager.registry.workers(spec.key)) == 3
    # When
    fewer = manager.manage("PUT", "/models/echo/1.0/?min_worker=1&synchronous=true")
    # Then
    assert status_of(fewer) == (200, "Workers scaled to 1 for model: echo, version: 1.0")
    assert len(manager.registry.workers(spec.key)) == 1


def test_scale_says_206_when_only_some_workers_are_ready_in_time(manager, node, monkeypatch):
    # Given a worker that is ready, and no other that will be
    monkeypatch.setattr("ingress.models.worker_wait.STARTUP_GRACE_S", 0.1)
    manager.register("echo", startup_timeout_s=1)
    node.behaviour = "loading"
    # When
    answer = manager.manage("PUT", "/models/echo?min_worker=2&synchronous=true")
    # Then
    assert status_of(answer) == (206, "Workers scaling in progress...")


@pytest.mark.parametrize(
    ("behaviour", "is_ready"), [("ready", True), ("loading", False), ("failed", False)]
)
def test_model_is_ready_for_kserve_while_a_worker_serves(manager, node, behaviour, is_ready):
    # Given
    node.behaviour = behaviour
    manager.register("echo")
    # When
    answers = [manager.manage("GET", "/v1/models/echo"), manager.predict("/v1/models/echo", "GET")]
    # Then
    assert [answer.json()["ready"] for answer in answers] == [is_ready, is_ready]


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
    # And the log knows which version the default one is
    assert f"not started model=echo version=1.0: {ERROR}" in caplog.text


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (
            "/models/echo?min_worker=2&max_worker=1",
            (400, "BadRequestException", "max_worker cannot be less than min_worker."),
        ),
        (
            "/models/echo?max_worker=-1",
            (400, "BadRequestException", "max_worker cannot be less than min_worker."),
        ),
        (
            "/models/echo?min_worker=2000000000",
            (400, "BadRequestException", "A node runs at most 1024 workers of a model."),
        ),
        (
            "/models/echo?min_worker=-1",
            (400, "BadRequestException", "min_worker cannot be negative."),
        ),
        ("/models/none", (404, "ModelNotFoundException", "Model not found: none")),
        (
            "/models/echo/7",
            (
                404,
                "ModelVersionNotFoundException",
                "Model version: 7 does not exist for model: echo",
            ),
        ),
        (
            "/models/echo?model_version=7",
            (
                404,
                "ModelVersionNotFoundException",
                "Model version: 7 does not exist for model: echo",
            ),
        ),
        ("/models/%7Becho", (404, "ModelNotFoundException", "Model not found: {echo")),
        (
            "/models/echo/7/set-default",
            (
                404,
                "ModelVersionNotFoundException",
                "Model version 7 does not exist for model echo",
            ),
        ),
        ("/models/none/1/set-default", (404, "ModelNotFoundException", "Model not found: none")),
    ],
)
def test_put_is_refused(manager, path, error):
    manager.register("echo")
    assert error_of(manager.manage("PUT", path)) == error


def test_default_version_moves_and_predictions_follow(manager):
    # Given
    manager.register("echo", "1.0")
    manager.register("echo", "2.0", min_worker=0, max_worker=0)
    assert manager.predict("/predictions/echo").status_code == 200
    # When
    answer = manager.manage("PUT", "/models/echo/2.0/set-default")
    # Then
    assert status_of(answer) == (
        200,
        'Default version successfully updated for model "echo" to "2.0"',
    )
    assert manager.manage("GET", "/models/echo").json()[0]["modelVersion"] == "2.0"
    assert manager.predict("/predictions/echo").status_code == 503


def test_describe_shows_one_version_or_all(manager):
    # Given
    manager.register("echo", "1.0")
    manager.register("echo", "2.0", min_worker=0, max_worker=0)
    # When
    found = {
        path: [document["modelVersion"] for document in manager.manage("GET", path).json()]
        for path in ("/models/echo", "/models/echo/2.0", "/models/echo/all")
    }
    # Then
    assert found == {
        "/models/echo": ["1.0"],
        "/models/echo/2.0": ["2.0"],
        "/models/echo/all": ["1.0", "2.0"],
    }


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


def test_describe_asks_the_handler_when_customized(manager):
    manager.register("echo")
    [document] = manager.manage("GET", "/models/echo?customized=true").json()
    assert document["customizedMetadata"] == {"labels": 2, "parts": []}
    assert list(document)[-1] == "customizedMetadata"


def test_describe_cannot_ask_a_handler_that_has_no_worker(manager):
    # Given
    manager.register("echo", min_worker=0, max_worker=0)
    # When
    answer = manager.manage("GET", "/models/echo?customized=true")
    # Then
    assert error_of(answer) == (
        503,
        "ServiceUnavailableException",
        'Model "echo" has no worker to serve describe request. Please use scale workers API to '
        "add workers.",
    )


def test_list_shows_the_default_version_of_each_model(manager):
    # Given
    for name in ("b", "a"):
        manager.register(name, min_worker=0, max_worker=0)
    # When
    answer = manager.manage("GET", "/models?limit=many")
    # Then
    assert answer.json() == {
        "models": [
            {"modelName": "a", "modelUrl": "a.mar"},
            {"modelName": "b", "modelUrl": "b.mar"},
        ]
    }


def test_unregister_ends_the_workers_and_the_predictions(manager):
    # Given
    spec = manager.register("echo")
    assert manager.predict("/predictions/echo").status_code == 200
    # When
    answer = manager.manage("DELETE", "/models/echo")
    # Then
    assert status_of(answer) == (200, 'Model "echo" unregistered')
    assert manager.registry.workers(spec.key) == []
    assert error_of(manager.predict("/predictions/echo"))[1] == "ModelNotFoundException"


def test_unregister_does_not_wait_for_the_workers_of_who_has_registered_again(manager, node):
    # Given a worker that does not go at once
    spec = manager.register("echo")
    node.close()
    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(manager.manage("DELETE", "/models/echo"))
    )
    waiting.start()
    eventually(lambda: manager.registry.get("echo") is None)
    # When
    manager.registry.create(spec)
    waiting.join(10)
    # Then
    assert [status_of(answer) for answer in answers] == [(200, 'Model "echo" unregistered')]
    assert manager.registry.resolve("echo", None) == spec


def test_unregister_keeps_the_default_version_while_others_remain(manager):
    # Given
    manager.register("echo", "1.0", min_worker=0, max_worker=0)
    manager.register("echo", "2.0", min_worker=0, max_worker=0)
    # When
    refused = manager.manage("DELETE", "/models/echo")
    # Then
    assert error_of(refused) == (
        403,
        "InvalidModelVersionException",
        "Cannot remove default version for model echo",
    )
    assert manager.manage("DELETE", "/models/echo/2.0").status_code == 200
    assert manager.manage("DELETE", "/models/echo").status_code == 200


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
        "it anew.",
    )
    # When / Then: nobody knows of which version it is, and of which others
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
        (
            False,
            (408, "RequestTimeoutException", "Timed out while cleaning resources: echo"),
        ),
        (True, (503, "ServiceUnavailableException", "The server is shutting down.")),
    ],
)
def test_unregister_does_not_wait_for_ever_for_workers_that_stay(manager, node, is_draining, error):
    # Given workers of a node that does not hear of it
    manager.register("echo")
    node.close()
    asked = Asked(manager, "DELETE", "/models/echo")
    eventually(lambda: manager.registry.get("echo") is None)
    # When
    manager.services.lifecycle.is_draining = is_draining
    # Then
    assert error_of(asked.answer()) == error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/models", 405),
        ("PUT", "/models", 405),
        ("POST", "/models/echo", 405),
        ("POST", "/v1/models/echo", 405),
        ("GET", "/", 405),
        ("POST", "/predictions/echo", 404),
        ("GET", "/models/echo/1.0/set-default/x", 404),
        ("GET", "/models//echo", 404),
        ("OPTIONS", "/", 200),
        ("OPTIONS", "/models/echo", 200),
        ("GET", "/models///", 200),
        ("GET", "/v1/models/echo", 200),
    ],
)
def test_paths_and_methods_are_torchserves(manager, method, path, status):
    manager.register("echo", min_worker=0, max_worker=0)
    assert manager.manage(method, path).status_code == status


def test_kserve_is_ready_while_there_are_workers(manager):
    manager.register("echo")
    manager.register("idle", min_worker=0, max_worker=0)
    answers = [manager.manage("GET", f"/v1/models/{name}").json() for name in ("echo", "idle")]
    assert answers == [{"name": "echo", "ready": True}, {"name": "idle", "ready": False}]
