"""The router on the event loop and the Flask application answer equal requests equally."""

import pytest
import requests
from werkzeug.test import EnvironBuilder

from ingress.role import Role

JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
MULTIPART = {"content-type": "multipart/form-data; boundary=B"}
TENSOR_HEADER = "inference-header-content-length"
TENSORS = {"content-type": "application/octet-stream", TENSOR_HEADER: "14"}
PARTS = (
    b'--B\r\nContent-Disposition: form-data; name="data"; filename="f"\r\n'
    b"Content-Type: image/png\r\n\r\nPNG\r\n--B--\r\n"
)
# A body that is too large to be read together with its head is read into a place of its own.
LARGE = b"x" * 20_000
# Written by the connection, not by either door.
SERVERS_OWN = {
    "connection",
    "server",
    "date",
    "content-length",
    "transfer-encoding",
    "x-request-id",
}

REQUESTS = [
    ("GET", "/predictions/echo", {}, b""),
    ("PUT", "/predictions/echo", {}, b"\x00\xff raw"),
    ("POST", "/predictions/echo/1.0", JSON, b'{"a": 1}'),
    ("POST", "/predictions/echo/1.0/v1/chat%20x/", JSON, b"{}"),
    ("POST", "/explanations/echo", {}, b"x"),
    ("POST", "/v2/models/echo/infer", JSON, b"{}"),
    ("POST", "/predictions/echo", FORM, b"a=1&b=2&a=%FF"),
    ("POST", "/predictions/echo", MULTIPART, PARTS),
    ("POST", "/predictions/echo", FORM, b"a=1&b=%FF&c=" + LARGE),
    ("POST", "/predictions/echo", JSON, b'"%b"' % LARGE),
    ("POST", "/predictions/echo", MULTIPART, b"--B\r\nbroken"),
    ("POST", "/predictions/echo", MULTIPART, PARTS.replace(b"PNG", LARGE)),
    ("POST", "/predictions/echo", {"x-status": "507"}, b"x"),
    ("POST", "/predictions/echo", {"x-status": "99"}, b"x"),
    ("POST", "/predictions/echo", {"x-fail": "1"}, b"x"),
    ("POST", "/predictions/echo", {"x-reply-type": "text/plain"}, b"x"),
    ("POST", "/predictions/echo", {"x-request-timeout-ms": "soon"}, b"x"),
    ("POST", "/predictions/echo", {}, b"x" * 100_001),
    ("POST", "/predictions/idle", {}, b"x"),
    ("POST", "/predictions/echo", {"prefer": "respond-async", "x-priority": "9"}, b"x"),
    ("POST", "/predictions/unknown", {"prefer": "respond-async"}, b"x"),
    ("GET", f"/jobs/{'0' * 32}", {}, b""),
    ("GET", f"/jobs/{'0' * 32}/", {}, b""),
    ("GET", f"/jobs/{'0' * 32}/result", {}, b""),
    ("GET", f"/jobs/{'0' * 32}/input", {}, b""),
    ("GET", f"/jobs/{'0' * 32}/events", {}, b""),
    ("DELETE", f"/jobs/{'0' * 32}", {}, b""),
    ("DELETE", f"/jobs/{'0' * 32}/result", {}, b""),
    ("POST", f"/jobs/{'0' * 32}", {}, b""),
    ("GET", "/jobs/x", {}, b""),
    ("GET", "/jobs", {}, b""),
    ("POST", "/predictions/unknown", {}, b"x"),
    ("POST", "/predictions/echo/9", {}, b"x"),
    ("POST", "/predictions/%2e%2e", {}, b"x"),
    ("POST", "/predictions/a%00b", {}, b"x"),
    ("POST", "/predictions", {}, b"x"),
    ("POST", "/v2/models/echo/versions/1.0/infer", JSON, b"{}"),
    ("POST", "/v2/models/echo/infer", TENSORS, b'{"inputs": []}12345678'),
    ("POST", "/v2/models/echo/infer", TENSORS, b'{"inputs": []}' + LARGE),
    ("POST", "/v2/models/echo/infer", {TENSOR_HEADER: "9"}, b"{}"),
    ("POST", "/invocations?model_name=echo&a=1&a=2%21", {}, b"x"),
    ("POST", "/invocations", FORM, b"model_name=echo&b=2"),
    ("POST", "/invocations", FORM, b"model_name=e%63ho&b=" + LARGE),
    ("POST", "/invocations", {}, b"x"),
    ("GET", "/models/echo/invoke?a=1", {}, b""),
    ("PUT", "/echo/predict/?a=1", {}, b"x"),
    ("POST", "/echo/1.0/predict?explain=2", {"explain": "mine"}, b"x"),
    ("POST", "/wfpredict/flow", {}, b"x"),
    ("PROPFIND", "/predictions/echo", {}, b"x"),
    ("TRACE", "/invocations?model_name=echo", {}, b""),
    ("POST", "/predictions/echo/1.0/a%0Ab", {}, b"x"),
    ("POST", "/predictions//echo", {}, b"x"),
    ("POST", "//echo/predict", {}, b"x"),
    ("POST", "/predictions/echo", {"x-reply-type": "caf\u00c3\u00a9"}, b"x"),  # UTF-8 on the wire
    ("POST", "/predictions/echo", {"upgrade": "websocket", "connection": "upgrade"}, b"x"),
    ("GET", "/v2", {}, b""),
    ("GET", "/v2/health/live", {}, b""),
    ("GET", "/v2/health/ready", {}, b""),
    ("GET", "/v2/models/echo", {}, b""),
    ("GET", "/v2/models/echo/ready", {}, b""),
    ("GET", "/v2/models/idle/ready", {}, b""),
    ("GET", "/v1/models/echo", {}, b""),
    ("POST", "/predictions/echo", {"x-pieces": "one,two"}, b"last"),
    ("POST", "/predictions/echo", {"x-pieces": "one", "x-status": "503"}, b"last"),
    ("OPTIONS", "/predictions/echo", {}, b""),
    ("OPTIONS", "/", {}, b""),
    ("GET", "/", {}, b""),
    ("GET", "/api-description", {}, b""),
    ("GET", "/ping", {}, b""),
    ("GET", "/livez", {}, b""),
    ("GET", "/readyz", {}, b""),
    ("GET", "/nowhere", {}, b""),
]


@pytest.mark.usefixtures("node")
def test_doors_agree(ingress):
    # Given
    ingress.register("echo")
    ingress.register("idle", min_worker=0, max_worker=0)
    for method, path, headers, body in REQUESTS:
        # When
        router = through_router(ingress, method, path, headers, body)
        flask = through_flask(ingress, method, path, headers, body)
        # Then
        assert router == flask, (method, path, headers)


def through_router(ingress, method, path, headers, body):
    # Prepared by hand, as `requests` would add a content type and an accept header.
    request = requests.Request(method, ingress.inference_url, data=body, headers=headers).prepare()
    request.url = ingress.inference_url + path
    with requests.Session() as session:
        answer = session.send(request, timeout=20)
    return answer.status_code, kept(answer.headers.items()), answer.content


def through_flask(ingress, method, path, headers, body):
    client = ingress.apps[Role.INFERENCE].test_client()
    # With a host, or the word behind two slashes would be taken for one.
    url = "http://localhost" + path
    answer = client.open(EnvironBuilder(url, method=method, headers=headers, data=body))
    return answer.status_code, kept(answer.headers.items()), answer.data


def kept(headers):
    return sorted((k.lower(), v) for k, v in headers if k.lower() not in SERVERS_OWN)
