"""The prediction paths beside /predictions: which model they mean and what reaches its handler."""

import socket
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import requests

from batching.models.spec import VersionKey
from batching.protocol import OPEN_INFERENCE_TYPE
from batching.store.arena import UNIT_BYTES
from ingress.torchserve.routes import parse_prediction_path
from tests.support import eventually
from tests.unit.ingress.sockets import awaited, with_settings

pytestmark = pytest.mark.slow  # whole servers on real sockets


@pytest.mark.parametrize(
    "path", ["/models/echo/invoke", "/echo/predict", "/echo/1.0/predict", "/invocations"]
)
def test_query_is_part_of_the_row_before_the_body(echo, path):
    # When
    query = "?model_name=echo&a=1&b=caf%C3%A9&a=2&body=lost"
    answer = echo.predict(path + query, data=b"tabby")
    # Then: types are empty, the body wins over the query
    assert answer.text == "model_name:,a:,b:,body:|echo|2|café|tabby"
    assert answer.headers["x-seen"] == "None None"


@pytest.mark.parametrize("path", ["/predictions/echo", "/v2/models/echo/infer", "/invocations"])
def test_headers_reach_the_handler_as_the_client_spelled_them(echo, path):
    # Given
    names = ["Host", "X-Custom", "x-tell-names", "X-CUSTOM", "Describe", "Content-Length"]
    client = HTTPConnection(urlsplit(echo.inference_url).netloc, timeout=20)
    client.putrequest("POST", f"{path}?model_name=echo", skip_accept_encoding=True)
    for name in names[1:]:
        client.putheader(name, "2")
    # When
    client.endheaders(b"{}")
    with closing(client):
        seen = client.getresponse().getheader("X-Names").split(",")
    # Then: two spellings are two headers, and what the worker looks for is as it looks for it
    assert seen[: len(names)] == names
    assert seen[len(names)] == "describe"


def test_invocation_means_the_only_model_that_was_loaded_at_start(echo):
    # Given
    echo.register("starter", is_loaded_at_startup=True)
    # When / Then
    assert echo.predict("/invocations", data=b"x").status_code == 200
    # Given
    echo.register("second", is_loaded_at_startup=True)
    # When / Then: once the change has been heard of
    eventually(lambda: echo.predict("/invocations", data=b"x").status_code == 400)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v2/models/echo/infer", f"{OPEN_INFERENCE_TYPE};json=2"), ("/predictions/echo", "")],
)
def test_any_json_is_an_inference_request_where_that_is_set(echo, path, kind):
    # Given
    settings = replace(echo.services.settings, open_inference_rows=True)
    services = with_settings(echo.services, settings)
    # When
    answer = awaited(services, parse_prediction_path(path), {}, b"{}")
    # Then
    assert answer.body == f"body:{kind}|{{}}".encode()


@pytest.mark.parametrize("text", ["", "x", "-1", "3", "1.0", "9" * 30])
def test_tensors_that_begin_nowhere_are_refused(echo, text):
    # When
    headers = {"Inference-Header-Content-Length": text.encode()}
    answer = echo.predict("/v2/models/echo/infer", data=b"{}", headers=headers)
    # Then: in both shapes of an error
    assert answer.status_code == 400
    assert answer.json()["error"] == answer.json()["message"]
    assert answer.json()["type"] == "BadRequestException"


def test_client_cannot_pass_its_body_off_as_tensors(echo):
    # When
    headers = {"content-type": f"{OPEN_INFERENCE_TYPE};json=1"}
    answer = echo.predict("/predictions/echo", data=b"{}", headers=headers)
    # Then: without the parameter, which only the ingress writes
    assert answer.text == f"body:{OPEN_INFERENCE_TYPE}|{{}}"


@pytest.mark.parametrize("path", ["/v2/models/slow/ready", "/v1/models/slow", "/v2/health/ready"])
def test_model_is_not_ready_without_a_worker(ingress, node, path):
    # Given
    node.behaviour = "loading"
    ingress.register("slow")
    # When / Then: a probe does not wait for a Redis that is slow on a busy machine
    eventually(lambda: readiness(ingress, path) == (503, False))
    assert ingress.predict("/v2/health/live", "GET").json() == {"live": True}


def readiness(ingress, path):
    answer = requests.get(ingress.inference_url + path, timeout=20)
    return answer.status_code, answer.json().get("ready")


def test_stream_is_counted_once_it_has_ended(echo):
    # Given
    metrics, key = echo.services.metrics, VersionKey("echo", "1.0")
    # When
    answer = echo.predict("/predictions/echo", headers={"x-pieces": "one,two"}, data=b"last")
    # Then
    assert answer.text == "onetwobody:|last"
    eventually(lambda: metrics.series[key].codes == {200: 1})


PIECE_BYTES = 1024


def test_body_is_held_once_while_its_client_waits(echo, node):
    # Given
    clients, body = 16, bytes(6 * UNIT_BYTES)
    echo.predict("/predictions/echo", data=body)
    node.pause()
    tracemalloc.start()
    # When
    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(echo.predict, "/predictions/echo", data=body) for _ in range(clients)]
        spec = echo.registry.resolve("echo", None)
        eventually(lambda: echo.registry.queue(spec).open_requests == clients)
        held = tracemalloc.take_snapshot()
        tracemalloc.stop()
        shared_bytes = echo.services.broker.memory.arena._taken.count(1) * UNIT_BYTES
        node.resume()
    # Then
    assert {answer.result().status_code for answer in asked} == {200}
    # Once, of what is as large as a piece of a body; not the buffers in which clients will read.
    of_server = held.filter_traces(
        [tracemalloc.Filter(inclusive=False, filename_pattern=socket.__file__)]
    )
    sizes = [trace.size for trace in of_server.traces]
    held_bytes = shared_bytes + sum(size for size in sizes if size >= PIECE_BYTES)
    assert 1 <= held_bytes / len(body) / clients < 1.5
