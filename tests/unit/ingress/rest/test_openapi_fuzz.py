"""B17: sends random requests to every operation of the OpenAPI documents."""

import json
from urllib.parse import quote

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingress.access.tokens import KeyFile
from ingress.role import Role
from ingress.torchserve.openapi import api_document, operations_of

pytestmark = pytest.mark.slow  # whole servers on real sockets

FREE = {("options", "/"), ("get", "/api-description"), ("get", "/livez"), ("get", "/readyz")}
NO_REASONS = ("/readyz", "/ping")  # where an error is a status
CALM = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Anything, and now and then something that exists. Numbers stay small: workers are made of them.
NAMES = st.one_of(
    st.sampled_from(["echo", "1.0"]),
    st.sampled_from(["echo", "good", "all", "..", "%", "{m:x}"]),
    st.text(min_size=1, max_size=40),
)
VALUES = st.one_of(
    st.just("good.mar"),
    st.sampled_from(["echo", "true", "false", "0", "1", "2", "-1", "2147483648", "NaN"]),
    st.text(max_size=40),
)
# Of headers: what some of them take, and what none does.
SPOKEN = st.one_of(
    st.sampled_from(["respond-async", "respond-async, wait=0", "wait=0", "high", "60", "result"]),
    st.sampled_from(["https://receiver.example/", "started,completed", "", "-1", "0", '"k"']),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
JSON = "application/json"
TYPES = [JSON, "multipart/form-data; boundary=B", "text/plain", "application/octet-stream"]
FORMS = st.just("application/x-www-form-urlencoded")
BODIES = st.one_of(
    st.just(("", b"")),
    st.tuples(st.sampled_from(TYPES), st.binary(max_size=300)),
    st.tuples(st.just(JSON), JSON_VALUES.map(lambda value: json.dumps(value).encode())),
    st.tuples(FORMS, st.binary(max_size=100)),
)


@pytest.fixture(params=["open", "closed"])
def keys(request, tmp_path):
    if request.param == "open":
        return None
    made = KeyFile(tmp_path / "key_file.json", lifetime_min=60)
    made.open()
    return made


@st.composite
def asked(draw, role):
    """Draws a request that the document allows: method and path of its operation, and itself."""
    operations = list(operations_of(api_document([role])["paths"]))
    path, method, operation = draw(st.sampled_from(operations))
    # Waiting for workers is tested elsewhere.
    query, headers, filled = {"synchronous": "false"}, {}, path
    for parameter in operation["parameters"]:
        name, place = parameter["name"], parameter["in"]
        if place == "path":
            filled = filled.replace(f"{{{name}}}", quote(draw(NAMES), safe=""))
        elif draw(st.booleans()):
            spoken = place == "header"
            (headers if spoken else query)[name] = draw(SPOKEN if spoken else VALUES)
    query["synchronous"] = "false"
    kind, body = draw(BODIES)
    if kind:
        headers["Content-Type"] = kind
    request = requests.Request(method.upper(), "http://x", headers, data=body, params=query)
    return method, path, filled, request


def send(session, url, filled, request, headers):
    request = requests.Request(**vars(request) | {"url": url, "hooks": None})
    request.headers = request.headers | headers
    prepared = request.prepare()
    # requests would tidy dots up.
    prepared.url = prepared.url.replace(url, url + filled.rstrip(), 1).replace("/?", "?", 1)
    return session.send(prepared, timeout=20)


def check(answer, path):
    """Checks what every answer promises."""
    status, reason = answer.status_code, answer.headers.get("x-ferry-reason")
    is_refused = status == 503 and (reason in {"no_worker", "unavailable"} or path == "/readyz")
    assert 200 <= status < 500 or is_refused or (status == 500 and path == "/ping")
    assert answer.headers["server"] == "torchferry"
    if status == 413:
        return
    if status >= 400 and path not in NO_REASONS:
        document = answer.json()
        if path.startswith("/v2/") and "error" in document:
            assert document.pop("error") == document["message"]
        assert list(document) == ["code", "type", "message"]
        assert document["code"] == status
        assert document["type"].endswith("Exception")
        assert isinstance(document["message"], str)
    assert len(answer.headers["x-request-id"]) == 36


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("role", [Role.INFERENCE, Role.MANAGEMENT])
def test_b17_every_documented_operation_keeps_its_promises(ingress, keys, tmp_path, role):
    # Given a model to hit now and then; nothing may take long
    ingress.register("echo")
    ingress.archives.add("good.mar", "good")
    url = ingress.inference_url if role is Role.INFERENCE else ingress.management_url
    scopes = json.loads((tmp_path / "key_file.json").read_text()) if keys else {}
    bearer = {name: {"Authorization": f"Bearer {it['key']}"} for name, it in scopes.items()}

    with requests.Session() as session:

        @CALM
        @given(asked(role))
        def run(drawn):
            method, path, filled, request = drawn
            # Without the key nothing but the free operations is answered.
            if scopes:
                refused = send(session, url, filled, request, {})
                is_refused = refused.headers.get("x-ferry-reason") == "invalid_key"
                assert (method, path) in FREE or is_refused
                if is_refused:
                    assert refused.status_code == 400
            # With it everything keeps its promises.
            check(send(session, url, filled, request, bearer.get(role, {})), path)

        run()
    # Then the server still serves
    answer = ingress.predict("/predictions/echo", data=b"alive", headers=bearer.get("inference"))
    assert answer.content == b"body:|alive" or answer.status_code in (404, 503)
    assert ingress.predict("/livez", "GET").status_code == 200
