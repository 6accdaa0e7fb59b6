"""Holds answers of a server against its OpenAPI document."""

from collections.abc import Mapping
from typing import Any

from openapi_schema_validator import OAS30Validator, oas30_format_checker


def problems_of(value: Any, component: str, document: Mapping[str, Any]) -> list[str]:
    """Returns what keeps a value from being what a document has under this name."""
    reference = {"$ref": f"#/components/schemas/{component}"}
    return _problems(value, reference, document["components"])


def _problems(value: Any, schema: Any, components: Any) -> list[str]:
    whole = {"allOf": [_strict(schema)], "components": _strict(components)}
    validator = OAS30Validator(whole, format_checker=oas30_format_checker)
    return [f"{one.json_path}: {one.message}" for one in validator.iter_errors(value)]


def _strict(schema: Any) -> Any:
    """Returns the schema, but a field that it does not name is an error."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _strict(value) for name, value in schema.items()}
    if isinstance(strict.get("properties"), dict) and "type" in strict:
        strict.setdefault("additionalProperties", False)
    return strict
