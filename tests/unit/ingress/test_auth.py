"""B11: what opens with which key, on every door. Source: TorchServe 0.12, contract 2.8."""

import datetime
import inspect
import json
import stat

import pytest

from batching.errors import ServeError
from batching.settings import Settings, SettingsError
from ingress import key_file
from ingress.auth import Gate
from ingress.key_file import KeyFile, KeyScope
from ingress.openapi import Role

REFUSED = (
    400,
    "InvalidKeyException",
    "Token Authorization failed. Token either incorrect, expired, or not provided correctly",
)
NOT_RENEWED = (400, "InvalidKeyException", REFUSED[2].replace("Authorization", "Authentication"))

INFERENCE_ROUTES = [
    ("POST", "/predictions/echo"),
    ("GET", "/predictions/echo/1.0/tail"),
    ("OPTIONS", "/predictions/echo"),
    ("POST", "/explanations/echo"),
    ("POST", "/v1/models/echo:predict"),
    ("POST", "/v2/models/echo/infer"),
    ("GET", "/ping"),
    ("POST", "/ping/"),
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
    ("GET", "/nowhere"),
]
FREE = [("OPTIONS", "/"), ("GET", "/api-description")]
PROBES = [("GET", "/livez"), ("GET", "/readyz")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "key_file.json"


@pytest.fixture
def keys(path):
    made = KeyFile(path, lifetime_min=60)
    made.open()
    return made


def key_of(path, scope):
    return json.loads(path.read_text())[scope]["key"]


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
def test_b11_inference_opens_with_its_own_key_only(ingress, path):
    # Given
    ingress.register("echo")
    for method, route in INFERENCE_ROUTES:
        for headers in wrong_headers(path, "inference"):
            # When / Then
            answer = ingress.predict(route, method, headers=headers)
            assert error_of(answer) == REFUSED, (method, route)
            assert answer.headers["connection"] == "close"
        # When / Then
        answer = ingress.predict(route, method, headers=bearer(key_of(path, "inference")))
        assert answer.headers.get("x-ferry-reason") != "invalid_key", (method, route)


@pytest.mark.usefixtures("node")
def test_b11_management_opens_with_its_own_key_only(ingress, path):
    # Given
    ingress.register("echo")
    for method, route in MANAGEMENT_ROUTES:
        for headers in wrong_headers(path, "management"):
            # When / Then
            assert error_of(ingress.manage(method, route, headers=headers)) == REFUSED
    # Then nothing has been changed by all these
    assert ingress.registry.names() == ["echo"]
    for method, route in MANAGEMENT_ROUTES:
        # When / Then
        answer = ingress.manage(method, route, headers=bearer(key_of(path, "management")))
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
    # Elsewhere these paths are nothing special.
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
        assert "authorization" not in seen


@pytest.mark.parametrize(
    ("method", "route", "scope"),
    [
        ("POST", "/predictions/echo", KeyScope.INFERENCE),
        ("POST", "/v1/models/echo:predict", KeyScope.INFERENCE),
        ("GET", "/v1/models/echo", KeyScope.MANAGEMENT),
        ("GET", "/ping", KeyScope.INFERENCE),
        ("GET", "/models", KeyScope.MANAGEMENT),
        ("POST", "//models", KeyScope.MANAGEMENT),
        ("GET", "/nowhere", KeyScope.MANAGEMENT),
        ("GET", "/livez/x", KeyScope.MANAGEMENT),
    ],
)
def test_b11_shared_listener_keeps_the_keys_apart(keys, path, method, route, scope):
    gate = Gate(keys, Role)
    gate.admit(method, route, f"Bearer {key_of(path, scope)}")
    other = next(name for name in KeyScope if name != scope)
    with pytest.raises(ServeError, match="Token Authorization failed"):
        gate.admit(method, route, f"Bearer {key_of(path, other)}")


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
    assert not ingress.services.keys.accepts(KeyScope(kind), before[kind]["key"])


def test_token_route_refuses_every_other_key_and_type(ingress, path):
    # Given
    before = path.read_text()
    api = bearer(key_of(path, "API"))
    cases = [
        ("/token?type=inference", {}),
        ("/token?type=inference", bearer(key_of(path, "management"))),
        ("/token?type=inference", bearer(key_of(path, "inference"))),
        ("/token?type=API", api),
        ("/token?type=", api),
        ("/token", api),
    ]
    for route, headers in cases:
        # When / Then
        assert error_of(ingress.manage("GET", route, headers=headers)) == NOT_RENEWED
    assert path.read_text() == before
    # The inference port has no such route, so it wants its own key.
    assert error_of(ingress.predict("/token?type=inference", "GET", headers=api)) == REFUSED


def test_key_file_has_torchserves_shape_and_belongs_to_its_user_alone(keys, path):
    # When
    document = json.loads(path.read_text())
    # Then
    assert list(document) == ["management", "inference", "API"]
    assert [list(entry) for entry in document.values()] == [
        ["key", "expiration time"],
        ["key", "expiration time"],
        ["key"],
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(len(entry["key"]) == 43 for entry in document.values())
    expires = datetime.datetime.fromisoformat(document["inference"]["expiration time"])
    left = expires - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(minutes=59) < left <= datetime.timedelta(minutes=60)
    assert list(path.parent.iterdir()) == [path]


def test_key_file_is_shared_and_renewals_are_noticed(keys, path):
    # Given a second ingress
    other = KeyFile(path, lifetime_min=60)
    other.open()
    old = key_of(path, "inference")
    assert keys.accepts(KeyScope.INFERENCE, old)
    # When
    other.renew(KeyScope.INFERENCE)
    # Then the new key works at once, and the old one no more
    assert keys.accepts(KeyScope.INFERENCE, key_of(path, "inference"))
    assert not keys.accepts(KeyScope.INFERENCE, old)


def test_expired_key_opens_nothing_and_is_replaced_at_the_next_start(path):
    # Given
    keys = KeyFile(path, lifetime_min=0)
    keys.open()
    old = key_of(path, "management")
    # When / Then
    assert not keys.accepts(KeyScope.MANAGEMENT, old)
    assert keys.accepts(KeyScope.API, key_of(path, "API"))
    # When
    restarted = KeyFile(path, lifetime_min=60)
    restarted.open()
    # Then
    assert key_of(path, "management") != old
    assert restarted.accepts(KeyScope.MANAGEMENT, key_of(path, "management"))


def test_operators_own_keys_live_as_long_as_they_say(path):
    # Given
    past, future = "2020-01-01T00:00:00.123456789Z", "2999-01-01T00:00:00Z"
    own = {
        "management": {"key": "m" * 8, "expiration time": future},
        "inference": {"key": "i" * 8},
    }
    path.write_text(json.dumps(own))
    keys = KeyFile(path, lifetime_min=60)
    # When
    keys.open()
    # Then
    assert keys.accepts(KeyScope.MANAGEMENT, "m" * 8)
    assert keys.accepts(KeyScope.INFERENCE, "i" * 8)
    assert not keys.accepts(KeyScope.API, "")
    assert json.loads(path.read_text()) == own
    # When it is replaced by one that has expired
    own["management"]["expiration time"] = past
    path.with_suffix(".new").write_text(json.dumps(own))
    path.with_suffix(".new").rename(path)
    # Then
    assert not keys.accepts(KeyScope.MANAGEMENT, "wrong")
    assert not keys.accepts(KeyScope.MANAGEMENT, "m" * 8)


def test_keys_known_so_far_stay_when_the_file_is_gone(keys, path):
    # Given
    key = key_of(path, "inference")
    # When
    path.unlink()
    # Then
    assert not keys.accepts(KeyScope.INFERENCE, "wrong")
    assert keys.accepts(KeyScope.INFERENCE, key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"management": {}}',
        '{"management": {"key": ""}}',
        '{"inference": {"key": 5}}',
        '{"inference": {"key": "x", "expiration time": "soon"}}',
        '{"inference": {"key": "x", "expiration time": "2999-01-01T00:00:00"}}',
    ],
)
def test_key_file_that_is_none_is_refused_at_start(path, text):
    path.write_text(text)
    with pytest.raises(SettingsError, match="key_file="):
        KeyFile(path, lifetime_min=60).open()


def test_key_file_keeps_digests_only_and_compares_them_in_constant_time(keys, path):
    # Then no key is in what the process remembers
    state = repr(vars(keys)) + repr(list(keys._secrets.values()))
    assert all(entry["key"] not in state for entry in json.loads(path.read_text()).values())
    assert "compare_digest" in inspect.getsource(key_file._Secret.matches)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"token_auth": "true"}, "key_file.json"),
        ({"key_file": "/run/keys.json"}, "/run/keys.json"),
        ({"key_file": "/run/keys.json", "disable_token_authorization": "true"}, None),
    ],
)
def test_tokens_are_asked_for_when_a_setting_says_so(given, expected):
    environment = {f"FERRY_{name.upper()}": value for name, value in given.items()}
    settings, _ = Settings.load(environment=environment)
    path = settings.keys_path()
    assert (None if path is None else str(path)) == expected
