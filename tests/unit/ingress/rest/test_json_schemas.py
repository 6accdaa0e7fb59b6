"""What OpenAPI 3.0 can say of a model's schema is said; nothing makes the document invalid."""

from hypothesis import given
from hypothesis import strategies as st
from openapi_spec_validator import validate

from ingress.rest.page_api import openapi_schema

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
