"""Makes OpenAPI's schemas of JSON Schema, which a model's own code may have written.

OpenAPI 3.0 has other words for some of it, and a document with anything else in it is not valid.
"""

import json
from collections.abc import Mapping
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
    found = _types(schema)
    found |= {"items": inner(schema.get("items"))} if found.get("type") == "array" else {}
    if isinstance(properties := schema.get("properties"), Mapping):
        found["properties"] = {str(name): inner(one) for name, one in properties.items()}
    if names := [name for name in _list(schema, "required") if isinstance(name, str)]:
        found["required"] = list(dict.fromkeys(names))
    if isinstance(others := schema.get("additionalProperties"), Mapping):
        found["additionalProperties"] = inner(others)
    for word in _COMBINED:
        if kept := [inner(one) for one in _list(schema, word) if not _is_null(one)]:
            found[word] = kept
    if values := [schema["const"]] if "const" in schema else _list(schema, "enum"):
        # Each once, as OpenAPI has it.
        found["enum"] = list({json.dumps(one, default=str): one for one in values}.values())
    # No `default` or `title`: the one would have to fit the rest, and properties have their names.
    texts = {word: schema.get(word) for word in ("description", "format")}
    return found | {word: text for word, text in texts.items() if isinstance(text, str)}


def _types(schema: Mapping[str, Any]) -> dict[str, Any]:
    names = _list(schema, "type") or [schema.get("type")]
    known = [name for name in names if name in _TYPES]
    may_be_null = "null" in names or any(_is_null(one) for one in _list(schema, "anyOf"))
    found: dict[str, Any] = {"nullable": True} if may_be_null else {}
    return found | ({"type": known[0]} if len(known) == 1 else {})


def _list(schema: Mapping[str, Any], word: str) -> list[Any]:
    value = schema.get(word)
    return value if isinstance(value, list) else []


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"
