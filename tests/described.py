"""Holds answers of a server against its OpenAPI document."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from openapi_schema_validator import OAS30Validator, oas30_format_checker


class Answered(Protocol):
    """An answer of `requests` or `httpx`."""

    status_code: int

    @property
    def headers(self) -> Mapping[str, str]: ...

    def json(self) -> Any: ...


class Described:
    """Compares answers with what a document says of them; it must name all of their fields."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._paths = document["paths"]
        self._components = document["components"]

    def complaints(self, operation_id: str, answer: Answered) -> list[str]:
        """Returns what is wrong with an answer of this operation; empty if it is as described."""
        responses = self._operation(operation_id)["responses"]
        described = responses.get(str(answer.status_code), responses["default"])
        # Of the answers that have no type, the bytes are the handler's.
        kind = answer.headers.get("content-type", "application/octet-stream").partition(";")[0]
        if kind not in described["content"]:
            return [f"{kind} is not described"]
        if kind != "application/json":
            return []
        return _problems(answer.json(), described["content"][kind]["schema"], self._components)

    def headers(self, operation_id: str, status: int) -> set[str]:
        """Returns the headers that such an answer may have, in lower case."""
        response = self._operation(operation_id)["responses"][str(status)]
        return {name.lower() for name in response.get("headers", ())}

    def _operation(self, operation_id: str) -> Any:
        [found] = [one for one in _operations(self._paths) if one["operationId"] == operation_id]
        return found


def problems_of(value: Any, component: str, document: Mapping[str, Any]) -> list[str]:
    """Returns what keeps a value from being what a document has under this name."""
    reference = {"$ref": f"#/components/schemas/{component}"}
    return _problems(value, reference, document["components"])


def _problems(value: Any, schema: Any, components: Any) -> list[str]:
    whole = {"allOf": [_strict(schema)], "components": _strict(components)}
    validator = OAS30Validator(whole, format_checker=oas30_format_checker)
    return [f"{one.json_path}: {one.message}" for one in validator.iter_errors(value)]


def _operations(paths: Mapping[str, Any]) -> Iterator[Any]:
    for methods in paths.values():
        yield from methods.values()


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
