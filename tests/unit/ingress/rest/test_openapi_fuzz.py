"""B17: sends random requests to every operation of the OpenAPI documents."""

import json
from urllib.parse import quote

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingress.access.tokens import KeyFile
from ingress.role import Role
from ingress.torchserve.openapi import api_document

pytestmark = pytest.mark.slow  # whole servers on real sockets

FREE = {("options", "/"), ("get", "/api-description"), ("get", "/livez"), ("get", "/readyz")}
CALM = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Anything, and now and then something that exists. Numbers stay small: workers are made of them.
NAMES = st.one_of(
    st.just("echo"),
    st.just("1.0"),
    st.sampled_from(["echo", "good", "all", "..", "%", "{m:x}"]),
    st.text(min_size=1, max_size=40),
)
VALUES = st.one_of(
    st.just("good.mar"),
    st.sampled_from(
        ["good.mar", "echo", "true", "false", "0", "1", "2", "-1", "2147483648", "NaN"]
    ),
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
BODIES = st.one_of(
    st.tuples(st.just(""), st.just(b"")),
    st.tuples(st.just("application/octet-stream"), st.binary(max_size=300)),
    st.tuples(
        st.sampled_from(["application/json", "multipart/form-data; boundary=B", "text/plain"]),
        st.binary(max_size=300),
    ),
    st.tuples(
        st.just("application/json"), JSON_VALUES.map(lambda value: json.dumps(value).encode())
    ),
    st.tuples(st.just("application/x-www-form-urlencoded"), st.binary(max_size=100)),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "key_file.json"


@pytest.fixture(params=["open", "closed"])
def keys(request, path):
    if request.param == "open":
        return None
    made = KeyFile(path, lifetime_min=60)
    made.open()
    return made


@pytest.fixture
def target(ingress, node):
    """An ingress with a model to hit now and then; nothing may take long."""
    ingress.register("echo")
    ingress.archives.add("good.mar", "good")
    return ingress


def operations(role):
    document = api_document([role])
    return [
        (method, path, document["paths"][path][method])
        for path in document["paths"]
        for method in document["paths"][path]
    ]


@st.composite
def asked(draw, role):
    """Draws method, path, query, headers, and body of a request that the document allows."""
    method, path, operation = draw(st.sampled_from(operations(role)))
    query, spoken = {}, {}
    filled = path
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            filled = filled.replace(f"{{{parameter['name']}}}", quote(draw(NAMES), safe=""))
        elif parameter["in"] == "header":
            if draw(st.booleans()):
                spoken[parameter["name"]] = draw(SPOKEN)
        elif draw(st.booleans()):
            query[parameter["name"]] = draw(VALUES)
    # Waiting for workers is tested elsewhere.
    query["synchronous"] = "false"
    return method, path, filled, query, spoken, *draw(BODIES)


def send(session, url, request, headers=None):
    method, _, filled, query, spoken, kind, body = request
    typed = {**spoken, "Content-Type": kind} if kind else spoken
    prepared = requests.Request(
        method.upper(), url, params=query, data=body, headers={**typed, **(headers or {})}
    ).prepare()
    # requests would tidy dots up.
    prepared.url = prepared.url.replace(url, url + filled.rstrip(), 1).replace("/?", "?", 1)
    return session.send(prepared, timeout=20)


def check(answer, request):
    """Checks what every answer promises."""
    status = answer.status_code
    assert (
        200 <= status < 500
        or (status, answer.headers.get("x-ferry-reason"))
        in {
            (503, "no_worker"),
            (503, "unavailable"),
        }
        or (status == 503 and request[1] == "/readyz")
        or (status == 500 and request[1] == "/ping")
    )
    assert answer.headers["server"] == "torchferry"
    if status == 413:
        return
    if status >= 400 and request[1] not in ("/readyz", "/ping"):
        document = answer.json()
        if request[1].startswith("/v2/") and "error" in document:
            assert document.pop("error") == document["message"]
        assert list(document) == ["code", "type", "message"]
        assert document["code"] == status
        assert document["type"].endswith("Exception")
        assert isinstance(document["message"], str)
    assert len(answer.headers["x-request-id"]) == 36


@pytest.mark.parametrize("role", [Role.INFERENCE, Role.MANAGEMENT])
def test_b17_every_documented_operation_keeps_its_promises(target, keys, path, role):
    url = target.inference_url if role is Role.INFERENCE else target.management_url
    scopes = {} if keys is None else json.loads(path.read_text())
    authorization = {"Authorization": f"Bearer {scopes[role]['key']}"} if scopes else {}

    with requests.Session() as session:

        @CALM
        @given(request=asked(role))
        def run(request):
            # Without the key nothing but the free operations is answered.
            if scopes:
                refused = send(session, url, request)
                is_free = (request[0], request[1]) in FREE
                is_refused = refused.headers.get("x-ferry-reason") == "invalid_key"
                assert is_free or is_refused
                if is_refused:
                    assert refused.status_code == 400
            # With it everything keeps its promises.
            check(send(session, url, request, authorization), request)

        run()
    # Then the server still serves
    answer = requests.post(
        f"{target.inference_url}/predictions/echo",
        data=b"alive",
        headers={"Authorization": f"Bearer {scopes['inference']['key']}"} if scopes else {},
        timeout=20,
    )
    assert answer.content == b"body:|alive" or answer.status_code in (404, 503)
    assert requests.get(f"{target.inference_url}/livez", timeout=5).status_code == 200
