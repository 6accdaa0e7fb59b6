"""Makes OpenAPI's schemas of JSON Schema, which a model's own code may have written.

OpenAPI 3.0 has other words for some of it, and a document with anything else in it is not valid.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

_TYPES = ("object", "array", "string", "number", "integer", "boolean")
_COMBINED = ("anyOf", "oneOf", "allOf")
_LEVELS = 16


def openapi_schema(schema: Any, levels: int = _LEVELS) -> dict[str, Any]:
    """Returns what OpenAPI 3.0 can say of the schema; `{}`, which is anything, of what is none."""
    if not isinstance(schema, Mapping) or levels == 0:
        return {}
    inner = partial(openapi_schema, levels=levels - 1)
    found = {word: schema[word] for word, fits in _PLAIN.items() if fits(schema.get(word))}
    found |= _types(schema)
    if found.get("type") == "array":
        found["items"] = inner(schema.get("items"))
    if isinstance(properties := schema.get("properties"), Mapping):
        found["properties"] = {str(name): inner(one) for name, one in properties.items()}
    if isinstance(names := schema.get("required"), list):
        known = dict.fromkeys(name for name in names if isinstance(name, str))
        found |= {"required": list(known)} if known else {}
    if isinstance(others := schema.get("additionalProperties"), Mapping):
        found["additionalProperties"] = inner(others)
    for word in _COMBINED:
        options = schema.get(word)
        kept = [one for one in options if not _is_null(one)] if isinstance(options, list) else []
        found |= {word: [inner(one) for one in kept]} if kept else {}
    if "const" in schema:
        found["enum"] = [schema["const"]]
    return found


def _types(schema: Mapping[str, Any]) -> dict[str, Any]:
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    known = [name for name in names if name in _TYPES]
    options = schema.get("anyOf")
    may_be_null = isinstance(options, list) and any(_is_null(one) for one in options)
    found: dict[str, Any] = {"nullable": True} if may_be_null or "null" in names else {}
    return found | ({"type": known[0]} if len(known) == 1 else {})


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# No `default`: it would have to fit the rest. No `title`: the names of properties say as much.
_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "description": lambda value: isinstance(value, str),
    "format": lambda value: isinstance(value, str),
    "enum": lambda value: isinstance(value, list) and value != [],
    "minimum": _is_number,
    "maximum": _is_number,
    "minLength": _is_count,
    "maxLength": _is_count,
    "minItems": _is_count,
    "maxItems": _is_count,
}
