"""The page's routes: what browsers and others get, and that nothing of a model is markup."""

from dataclasses import replace

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from openapi_spec_validator import validate

from batching.models.spec import VersionKey
from batching.process.siblings import Siblings
from batching.protocol import BatchTiming, ClosedBy
from batching.store.clients import connect
from batching.store.registry.registry import Registry
from ingress.rest import page_api
from ingress.rest.app import create_app
from ingress.rest.page_api import openapi_schema
from ingress.role import Role
from tests.unit.ingress.sockets import changed

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
HOSTILE = "<img src=x onerror=alert(1)>"
INTERFACE = {
    "summary": HOSTILE,
    "input": {"kind": "json", "type": "House", "schema": {"type": "object"}},
    "output": {"type": "float", "schema": {"type": "number"}},
    "example": {"rooms": 3},
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}
WRONG_SHAPES = ({"input": 5}, {"inputs": [{"name": "x"}]}, {"summary": None}, {"inputs": {}})


@pytest.fixture
def typed(ingress, node):
    """The ingress, with a model whose worker says what it takes."""
    node.interface = INTERFACE
    ingress.register("house", batch_size=8)
    return ingress


def client(ingress, **settings):
    services = changed(ingress.services, settings=replace(ingress.services.settings, **settings))
    return create_app(services, [Role.INFERENCE]).test_client()


def test_browsers_get_the_page_and_others_its_links(ingress):
    # When
    page, links = ingress.predict("/", "GET", headers=BROWSER), ingress.predict("/", "GET")

    # Then
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for path in links.json()["links"].values():
        assert requests.get(ingress.inference_url + path, timeout=20).status_code == 200, path


def test_page_allows_no_script_but_its_own(ingress):
    for path in ("/", "/docs", "/page/page.js"):
        policy = ingress.predict(path, "GET", headers=BROWSER).headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "script-src" not in policy


def test_page_lists_the_models_for_browsers_without_scripts(typed):
    text = typed.predict("/", "GET", headers=BROWSER).text
    assert "<noscript>" in text
    assert "<code>/predictions/house</code>" in text
    assert HOSTILE not in text


def test_page_is_there_while_redis_is_away(ingress):
    # Given
    registry = Registry(connect("unix:///nowhere/redis.sock"))
    app = create_app(changed(ingress.services, probe_registry=registry), [Role.INFERENCE])
    # When / Then
    assert app.test_client().get("/", headers=BROWSER).status_code == 200
    assert app.test_client().get("/page/models").status_code == 503


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/page/models", "/page/batches"])
def test_nothing_of_it_is_there_when_it_is_off(ingress, path):
    answer = client(ingress, page="off").get(path, headers=BROWSER)
    assert answer.status_code == (405 if path == "/" else 404)


def test_models_are_described_as_their_workers_do(typed):
    # When
    [model] = typed.predict("/page/models", "GET").json()

    # Then
    assert (model["name"], model["version"], model["versions"]) == ("house", "1.0", ["1.0"])
    assert model["workers"] == [{"state": "READY", "device": "cpu"}]
    assert model["batch_size"] == 8
    assert model["interface"] == INTERFACE | {
        "output": {"type": "float", "schema": {"type": "number"}}
    }


def test_errors_of_workers_are_not_shown(ingress, node):
    # Given
    node.behaviour = "failed"
    ingress.register("broken")
    # When
    answer = ingress.predict("/page/models", "GET")
    # Then
    assert [one["workers"][0]["state"] for one in answer.json()] == ["FAILED"]
    assert "no weights" not in answer.text


def test_document_has_the_models_and_is_valid(typed):
    # When
    document = typed.predict("/openapi.json", "GET").json()

    # Then
    validate(document)
    operation = document["paths"]["/predictions/house"]["post"]
    assert operation["summary"] == HOSTILE
    assert operation["requestBody"]["content"] == {
        "application/json": {"schema": {"type": "object"}, "example": {"rooms": 3}}
    }
    answer = operation["responses"]["200"]["content"]
    assert answer == {"application/json": {"schema": {"type": "number"}}}


@pytest.mark.parametrize(
    ("kind", "content_types"),
    [
        ("text", ["text/plain"]),
        ("image", ["image/jpeg", "image/png"]),
        ("bytes", ["application/octet-stream"]),
        ("tensor", ["application/json", "application/octet-stream"]),
        ("form", ["multipart/form-data", "application/json"]),
        ("any", ["application/json", "text/plain", "application/octet-stream"]),
        ("of a later release", ["application/json", "text/plain", "application/octet-stream"]),
    ],
)
def test_document_says_in_which_content_types_a_model_is_asked(ingress, node, kind, content_types):
    # Given
    node.interface = {
        "input": {"kind": kind, "schema": {"type": "object"}},
        "output": {"type": "str"},
    }
    ingress.register("m")
    # When
    document = ingress.predict("/openapi.json", "GET").json()
    # Then
    validate(document)
    operation = document["paths"]["/predictions/m"]["post"]
    assert list(operation["requestBody"]["content"]) == content_types
    assert list(operation["responses"]["200"]["content"]) == ["text/plain"]


@pytest.mark.parametrize("interface", WRONG_SHAPES, ids=str)
def test_interface_of_another_shape_says_nothing(ingress, node, interface):
    # Given
    node.interface = interface
    ingress.register("m")
    # When / Then
    assert ingress.predict("/page/models", "GET").json()[0]["interface"] == {}
    validate(ingress.predict("/openapi.json", "GET").json())
    assert ingress.predict("/v2/models/m", "GET").json()["inputs"] == []


def test_metadata_names_the_tensors(typed):
    document = typed.predict("/v2/models/house", "GET").json()
    assert (document["inputs"], document["outputs"]) == (INTERFACE["inputs"], INTERFACE["outputs"])


def test_batches_that_left_are_told_once(typed):
    # Given
    metrics = typed.services.metrics.version(VersionKey("house", "1.0"), None)
    timing = BatchTiming(3, 1500, 9000, is_first=True, closed_by=ClosedBy.DELAY)
    metrics.count_answer(200, 0.01, timing, full_size=8)
    metrics.count_answer(200, 0.01, BatchTiming(3, 1500, 9000, is_first=False), full_size=8)

    # When
    document = typed.predict("/page/batches", "GET").json()

    # Then
    [batch] = document["batches"]
    assert batch.pop("at_s") <= document["now_s"]
    assert batch == {
        "model": "house",
        "size": 3,
        "full_size": 8,
        "closed_by": "delay",
        "wait_ms": 1.5,
        "handler_ms": 9.0,
    }
    # And not those that are known already
    after_s = document["now_s"]
    assert typed.predict(f"/page/batches?after={after_s!r}", "GET").json()["batches"] == []


def test_batches_come_with_the_number_of_processes_that_share_the_port(ingress):
    # Given
    services = changed(ingress.services, siblings=Siblings(0, 3))
    # When
    answer = create_app(services, [Role.INFERENCE]).test_client().get("/page/batches")
    # Then
    assert answer.get_json()["processes"] == 3


def test_reader_is_not_there_without_its_package(ingress, monkeypatch):
    # Given
    monkeypatch.setattr(page_api.importlib.util, "find_spec", lambda _: None)
    # When / Then
    app = client(ingress)
    assert "pip install swagger-ui-bundle" in app.get("/docs").get_data(as_text=True)
    assert app.get("/docs/swagger-ui.css").status_code == 404
    assert app.get("/openapi.json").status_code == 200


# --- schemas: what OpenAPI 3.0 can say is said; nothing makes the document invalid

HOUSE = {
    "title": "House",
    "type": "object",
    "properties": {
        "rooms": {"type": "integer", "minimum": 1, "default": 3},
        "kind": {"enum": ["flat", "house"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
    },
    "required": ["rooms"],
}


def test_schema_is_said_in_the_words_of_openapi():
    # When / Then
    assert openapi_schema(HOUSE) == {
        "type": "object",
        "properties": {
            "rooms": {"type": "integer"},
            "kind": {"enum": ["flat", "house"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {},
            "pair": {"type": "array", "items": {}},
        },
        "required": ["rooms"],
    }


def validate_in_document(schema):
    answer = {"description": "Done", "content": {"application/json": {"schema": schema}}}
    paths = {"/m": {"post": {"operationId": "m", "responses": {"200": answer}}}}
    validate({"openapi": "3.0.1", "info": {"title": "T", "version": "1"}, "paths": paths})


# Words of JSON Schema with any values: right ones, and what a model's own code may write.
WORDS = (
    *("type", "properties", "required", "items", "anyOf", "allOf", "enum", "const", "$ref"),
    *("minimum", "exclusiveMinimum", "maxLength", "format", "description", "additionalProperties"),
    *("pattern", "default", "nullable", "discriminator", "example", "prefixItems", "not"),
)
TEXTS = st.sampled_from(["object", "array", "string", "null", "text", "#/$defs/x", "("])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_schema_makes_a_valid_document(schema):
    validate_in_document(openapi_schema(schema))


def test_schema_without_an_end_is_cut():
    # Given
    endless = {"type": "array"}
    endless["items"] = endless
    # When / Then
    validate_in_document(openapi_schema(endless))
