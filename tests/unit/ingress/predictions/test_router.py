import gc
import time
import uuid

import pytest
import requests

from batching.models.spec import ModelSpec
from batching.store import keys
from batching.store.clients import connect
from batching.store.keys import VersionKeys
from ingress.http1.connection import HttpConnection
from ingress.predictions.prediction import Prediction
from ingress.predictions.prediction_service import MAX_LINES, FailedRequests
from tests.support import eventually, eventually_async
from tests.timing import assert_within
from tests.unit.ingress.simulated_node import ERROR

pytestmark = pytest.mark.slow  # whole servers on real sockets


def test_prediction_reaches_the_worker_and_back(echo):
    # When
    answer = echo.predict("/predictions/echo/1.0/tail/x", data=b"tabby")
    # Then
    assert (answer.status_code, answer.content) == (200, b"body:|tabby")
    assert answer.headers["x-seen"] == "False tail/x"
    assert "content-type" not in answer.headers
    assert answer.headers["connection"] == "keep-alive"
    assert answer.headers["server"] == "torchferry"


@pytest.mark.parametrize("size_bytes", [1, 60_000])
def test_answered_prediction_and_its_connection_are_freed_without_a_collection(echo, size_bytes):
    # Given
    gc.collect()
    gc.disable()
    try:
        # When
        for _ in range(3):
            assert echo.predict("/predictions/echo", data=bytes(size_bytes)).status_code == 200
        # Then
        kinds = (Prediction, HttpConnection)
        eventually(lambda: not any(issubclass(type(one), kinds) for one in gc.get_objects()))
    finally:
        gc.enable()


def test_prediction_has_a_request_id_of_its_own(echo):
    # When
    answers = [
        echo.predict("/predictions/echo", data=b"x", headers={"x-request-id": "forged"})
        for _ in range(2)
    ]
    # Then
    first, second = (uuid.UUID(answer.headers["x-request-id"]) for answer in answers)
    assert first.version == second.version == 4
    assert first != second


def test_prediction_without_workers_is_refused_in_torchserves_words(ingress):
    # Given
    ingress.register("idle", min_worker=0, max_worker=0)
    # When
    answer = ingress.predict("/predictions/idle/1.0")
    # Then
    assert answer.status_code == 503
    assert answer.json()["type"] == "ServiceUnavailableException"
    message = answer.json()["message"]
    assert message.startswith('Model "idle" Version 1.0" has no worker to serve')
    # And then it says how to start one, and not to try again until somebody has
    start = ". Start one: ferry models scale idle --min-worker 1"
    assert message.endswith(f"{start} --version 1.0")
    assert ingress.predict("/predictions/idle").json()["message"].endswith(start)
    assert answer.headers["x-ferry-reason"] == "no_worker"
    assert "retry-after" not in answer.headers


def test_prediction_whose_workers_do_not_load_may_be_tried_again(ingress, redis_url):
    # Given workers that are wanted, and are not there
    spec = ModelSpec("idle", "1.0", "idle.mar", "h.py", min_worker=1, max_worker=1)
    ingress.registry.create(spec)
    # When
    answer = ingress.predict("/predictions/idle")
    # Then
    end = ". Its workers are starting, or could not: ferry models describe idle"
    assert answer.json()["message"].endswith(end)
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("is_registered", [True, False])
def test_prediction_without_a_queue_is_refused_by_what_is_registered(
    ingress, redis_url, is_registered
):
    # Given a version that this ingress knows, and that has no queue
    spec = ingress.register("idle", min_worker=0, max_worker=0)
    assert ingress.predict("/predictions/idle").status_code == 503
    client = connect(redis_url)
    client.delete(VersionKeys.of(spec.key).config)
    client.set(keys.EPOCH, "now")
    if not is_registered:
        client.hdel(keys.MODELS, "idle")  # without an announcement
    client.close()
    # When
    answer = ingress.predict("/predictions/idle")
    # Then
    reason = "no_worker" if is_registered else "model_not_found"
    assert answer.headers["x-ferry-reason"] == reason


def test_prediction_is_late_when_its_deadline_passes(echo, node):
    # Given
    node.pause()
    # When
    answer = echo.predict("/predictions/echo", headers={"x-request-timeout-ms": "100"})
    # Then
    assert answer.status_code == 504
    assert answer.headers["x-ferry-reason"] == "deadline_exceeded"


@pytest.mark.parametrize(
    ("probe", "status", "text"),
    [
        ("livez", 200, "Live"),
        ("ping", 200, "Healthy"),
        ("readyz", 503, "Request store unavailable"),
    ],
)
def test_probe_answers_while_the_store_is_silent(ingress, frozen, probe, status, text):
    with frozen():
        # When
        started = time.monotonic()
        answer = requests.get(f"{ingress.inference_url}/{probe}", timeout=20)
        took_s = time.monotonic() - started
    # Then
    assert (answer.status_code, answer.json()) == (status, {"status": text})
    assert_within(took_s, 0.95)


def test_ping_is_healthy_while_workers_load_and_unhealthy_when_they_failed(ingress, node):
    # Given
    node.behaviour = "loading"
    ingress.register("slow")
    # When / Then
    assert ingress.predict("/ping", "GET").json() == {"status": "Healthy"}
    assert ingress.predict("/readyz", "GET").status_code == 503
    # Given
    node.behaviour = "failed"
    ingress.register("broken")
    # When
    answer = ingress.predict("/ping", "GET")
    # Then
    assert (answer.status_code, answer.json()) == (500, {"status": "Unhealthy"})


def test_ready_means_that_every_model_has_a_worker(echo):
    # Given / When / Then
    assert echo.predict("/readyz", "GET").json() == {"status": "Ready"}
    # Given
    echo.services.lifecycle.is_draining = True
    # When
    answer = echo.predict("/readyz", "GET")
    # Then
    assert (answer.status_code, answer.json()) == (503, {"status": "Draining"})


@pytest.mark.parametrize(
    ("load_error", "is_told"), [("", True), ("", False), ("Model not found at: gone.mar", False)]
)
def test_prediction_of_a_model_that_could_not_be_loaded_is_told_so(
    ingress, node, load_error, is_told
):
    # Given: one that no worker could load, or that could not be registered at the start
    ingress.services.predictor.tells_errors = is_told
    node.behaviour = "failed"
    workers = 0 if load_error else 1
    ingress.register("broken", min_worker=workers, max_worker=workers, load_error=load_error)
    # When
    answer = ingress.predict("/predictions/broken")
    # Then
    why = load_error or (ERROR if is_told else "The management API has the error")
    more = "" if load_error else ". More: ferry models describe broken"
    assert answer.json()["message"] == (
        'Model "broken" has no worker to serve inference request: it could not be loaded. '
        f"{why}{more}"
    )
    assert (answer.status_code, answer.headers["x-ferry-reason"]) == (503, "no_worker")
    assert answer.headers.get("retry-after") == (None if load_error else "1")


# --- which requests have failed, in a log that a storm of them does not fill

ASKED = {"model": "m", "version": "1.0"}


async def test_failed_request_is_named_with_its_reason(caplog):
    # When
    failed = FailedRequests()
    failed.note("a", 504, "deadline_exceeded", ASKED)
    failed.note("b", 500, "", {"method": "PUT", "path": "/models/m%0A"})
    # Then
    assert caplog.messages == [
        "failed request=a status=504 reason=deadline_exceeded model=m version=1.0",
        "failed request=b status=500 reason=handler method=PUT path=/models/m%0A",
    ]


async def test_only_a_few_are_named_in_a_second_and_the_others_counted(caplog):
    failed = FailedRequests(period_s=0.05)
    # When
    for number in range(MAX_LINES + 7):
        failed.note(f"first-{number}", 503, "queue_full", ASKED)
    # Then the count comes without a further failure
    await eventually_async(lambda: caplog.messages[-1] == "failed requests left_out=7")
    # When
    failed.note("second", 503, "queue_full", ASKED)
    # Then
    assert len(caplog.messages) == MAX_LINES + 2
    assert caplog.messages[-1].startswith("failed request=second ")
