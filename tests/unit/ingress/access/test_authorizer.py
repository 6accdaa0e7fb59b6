"""B11: what opens with which key, on every door. Source: TorchServe 0.12."""

import json

import pytest
import requests

from batching.errors import ServeError
from ingress.access.tokens import SCOPES, Authorizer
from ingress.role import Role
from tests.unit.ingress.access.test_key_file import key_of, keys, path

__all__ = ["keys", "path"]  # the fixtures

REFUSED = (
    400,
    "InvalidKeyException",
    "Token Authorization failed. Token either incorrect, expired, or not provided correctly",
)
NOT_RENEWED = (400, "InvalidKeyException", REFUSED[2].replace("Authorization", "Authentication"))

NO_JOB = f"/jobs/{'0' * 32}"

INFERENCE_ROUTES = [
    ("POST", "/predictions/echo"),
    ("GET", "/predictions/echo/1.0/tail"),
    ("OPTIONS", "/predictions/echo"),
    ("POST", "/explanations/echo"),
    ("POST", "/v1/models/echo:predict"),
    ("POST", "/v2/models/echo/infer"),
    ("GET", "/ping"),
    ("POST", "/ping/"),
    ("GET", NO_JOB),
    ("DELETE", NO_JOB),
    ("GET", f"{NO_JOB}/result"),
    ("GET", "/nowhere"),
    ("GET", "/"),
]
MANAGEMENT_ROUTES = [
    ("GET", "/models"),
    ("GET", "/models/"),
    ("POST", "/models"),
    ("PUT", "/models/echo"),
    ("GET", "/models/echo/1.0"),
    ("PUT", "/models/echo/1.0/set-default"),
    ("DELETE", "/models/echo"),
    ("OPTIONS", "/models/echo"),
    ("GET", "/v1/models/echo"),
    ("GET", "/jobs"),
    ("DELETE", "/jobs?model=echo"),
    ("POST", "/jobs/retry"),
    ("POST", f"{NO_JOB}/retry"),
    ("GET", f"{NO_JOB}/result"),
    ("GET", "/nowhere"),
]
FREE = [("OPTIONS", "/"), ("GET", "/api-description")]
PROBES = [("GET", "/livez"), ("GET", "/readyz")]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def error_of(answer):
    document = answer.json()
    return answer.status_code, document["type"], document["message"]


def wrong_headers(path, scope):
    """Everything that is not the right key."""
    other = "management" if scope == "inference" else "inference"
    right = key_of(path, scope)
    return [
        {},
        bearer(key_of(path, other)),
        bearer(key_of(path, "API")),
        bearer("x" * 43),
        bearer(right[:-1]),
        bearer(""),
        {"Authorization": right},
        {"Authorization": f"Basic {right}"},
        bearer("\u00e9".encode().decode("latin-1")),
    ]


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("scope", "routes"), [("inference", INFERENCE_ROUTES), ("management", MANAGEMENT_ROUTES)]
)
def test_b11_port_opens_with_its_own_key_only(ingress, path, scope, routes):
    # Given
    ingress.register("echo")
    url = ingress.inference_url if scope == "inference" else ingress.management_url
    for method, route in routes:
        for headers in wrong_headers(path, scope):
            # When / Then
            answer = requests.request(method, url + route, headers=headers, timeout=20)
            assert error_of(answer) == REFUSED, (method, route)
            assert answer.headers["connection"] == "close"
    # Then nothing has been changed by all these
    assert sorted(ingress.registry.snapshot()) == ["echo"]
    for method, route in routes:
        # When / Then
        headers = bearer(key_of(path, scope))
        answer = requests.request(method, url + route, headers=headers, timeout=20)
        assert answer.headers.get("x-ferry-reason") != "invalid_key", (method, route)


def test_b11_flask_alone_asks_for_the_key_too(ingress, path):
    for role, routes in (
        (Role.INFERENCE, INFERENCE_ROUTES),
        (Role.MANAGEMENT, MANAGEMENT_ROUTES),
    ):
        client = ingress.apps[role].test_client()
        for method, route in routes:
            # When / Then
            answer = client.open(route, method=method)
            assert (answer.status_code, answer.json["type"]) == REFUSED[:2]
            # When / Then
            headers = bearer(key_of(path, role))
            answer = client.open(route, method=method, headers=headers)
            assert answer.headers.get("x-ferry-reason") != "invalid_key"


def test_b11_descriptions_probes_and_metrics_need_no_key(ingress):
    for method, route in FREE + PROBES:
        assert ingress.predict(route, method).status_code in (200, 503), route
    for method, route in FREE:
        assert ingress.manage(method, route).status_code == 200
    metrics = ingress.apps[Role.METRICS].test_client()
    assert metrics.get("/metrics").status_code == 200
    # On other ports these are paths like any other.
    assert error_of(ingress.manage("GET", "/livez")) == REFUSED
    assert error_of(ingress.manage("GET", "/metrics")) == REFUSED


def test_b11_probe_without_a_key_is_told_no_model_names(ingress):
    # Given
    spec = ingress.register("secret", min_worker=0, max_worker=0)
    ingress.registry.scale(spec.key, 1, 1)
    # When / Then
    assert ingress.predict("/readyz", "GET").json() == {"status": "No ready worker"}


@pytest.mark.usefixtures("node")
def test_b11_key_reaches_no_handler(ingress, path):
    # Given
    ingress.register("echo")
    headers = {**bearer(key_of(path, "inference")), "x-tell-names": "yes"}
    # When
    answer = ingress.predict("/predictions/echo", headers=headers)
    flask = ingress.apps[Role.INFERENCE].test_client().post("/predictions/echo", headers=headers)
    # Then
    for seen in (answer.headers["x-names"], flask.headers["x-names"]):
        assert "x-tell-names" in seen
        assert "authorization" not in seen.lower()


@pytest.mark.parametrize(
    ("method", "route", "scope"),
    [
        ("POST", "/predictions/echo", "inference"),
        ("POST", "/v1/models/echo:predict", "inference"),
        ("GET", "/v1/models/echo", "management"),
        ("GET", "/ping", "inference"),
        ("GET", "/models", "management"),
        ("POST", "//models", "management"),
        ("GET", "/nowhere", "management"),
        ("GET", "/livez/x", "management"),
        ("GET", NO_JOB, "inference"),
        ("DELETE", NO_JOB, "inference"),
        ("GET", f"{NO_JOB}/result", "inference"),
        ("POST", f"{NO_JOB}/retry", "management"),
        ("POST", "/jobs/retry", "management"),
        ("GET", "/jobs", "management"),
        ("DELETE", "/jobs", "management"),
        ("GET", "/jobs/x", "management"),
    ],
)
def test_b11_shared_listener_keeps_the_keys_apart(keys, path, method, route, scope):
    authorizer = Authorizer(keys, Role)
    authorizer.admit(method, route, f"Bearer {key_of(path, scope)}")
    other = next(name for name in SCOPES if name != scope)
    with pytest.raises(ServeError, match="Token Authorization failed"):
        authorizer.admit(method, route, f"Bearer {key_of(path, other)}")


@pytest.mark.parametrize("kind", ["inference", "management"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_token_route_renews_a_key(ingress, path, kind, method):
    # Given
    before = json.loads(path.read_text())
    # When
    headers = bearer(before["API"]["key"])
    answer = ingress.manage(method, f"/token?type={kind}", headers=headers)
    # Then
    after = json.loads(path.read_text())
    assert (answer.status_code, answer.content) == (200, b"\n")
    assert [name for name in after if after[name] != before[name]] == [kind]
    headers = bearer(after[kind]["key"])
    answers = {
        "inference": ingress.predict("/ping", "GET", headers=headers),
        "management": ingress.manage("GET", "/models", headers=headers),
    }
    assert answers[kind].status_code == 200
    assert not ingress.services.keys.accepts(kind, before[kind]["key"])


def test_token_route_says_why_a_key_cannot_be_renewed(ingress, path):
    # Given
    headers = bearer(key_of(path, "API"))
    path.unlink()
    path.mkdir()
    # When
    answer = ingress.manage("GET", "/token?type=inference", headers=headers)
    # Then
    why = "The key file cannot be written: Is a directory."
    assert error_of(answer) == (500, "InternalServerException", why)


def test_token_route_refuses_every_other_key_and_type(ingress, path):
    # Given
    before, route = path.read_text(), "/token?type=inference"
    api = bearer(key_of(path, "API"))
    wrong = [{}, *(bearer(key_of(path, scope)) for scope in ("management", "inference"))]
    cases = [*((route, headers) for headers in wrong)]
    cases += [("/token?type=API", api), ("/token?type=", api), ("/token", api)]
    for asked, headers in cases:
        # When / Then
        assert error_of(ingress.manage("GET", asked, headers=headers)) == NOT_RENEWED
    assert path.read_text() == before
    # The inference port has no such route, so it wants its own key.
    assert error_of(ingress.predict(route, "GET", headers=api)) == REFUSED


# --- idempotency keys of jobs

ONCE = {"Prefer": "respond-async", "Idempotency-Key": "one"}


@pytest.fixture
def submit(echo, keys, path):
    """Submits the same request with the inference key of now."""

    def send(body=b"x", **headers):
        token = {"Authorization": f"Bearer {key_of(path, 'inference')}"}
        return echo.predict("/predictions/echo", data=body, headers=ONCE | token | headers)

    return send


def test_key_outlives_the_token_that_it_was_sent_with(submit, keys, path):
    # Given
    first = submit()

    # When
    keys.renew("inference", f"Bearer {key_of(path, 'API')}")
    second = submit()

    # Then
    assert second.json()["id"] == first.json()["id"]
    assert second.headers["idempotency-replayed"] == "true"
    assert submit(b"y").status_code == 422


def test_token_is_nowhere_in_redis(submit, echo, node, path):
    # Given
    node.pause()
    submit()
    token = key_of(path, "inference")

    # When
    client = echo.services.client
    held = "".join(f"{name}{value_of(client, name)}" for name in client.keys("*"))
    node.resume()

    # Then
    assert "explain" in held  # the request is there
    assert token not in held


def value_of(client, name):
    """Returns what a key holds."""
    readers = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda name: client.lrange(name, 0, -1),
        b"zset": lambda name: client.zrange(name, 0, -1),
        b"set": client.smembers,
    }
    return readers[client.type(name)](name)
