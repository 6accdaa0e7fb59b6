"""Makes the OpenAPI documents of ports and models, from openapi.yaml."""

import importlib.metadata
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from batching.models.spec import PARAMETERS
from ingress.role import Role
from ingress.torchserve.routes import ROUTES

VERSION = importlib.metadata.version("torchferry")

_TYPES: Mapping[type, Mapping[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    list: {"type": "array", "items": {"type": "integer"}},
}


def api_document(roles: Collection[Role]) -> dict[str, Any]:
    operations = {route.operation for route in ROUTES if route.port_on(roles)}
    if set(roles) == {Role.METRICS}:
        operations = {"metrics"}  # as in TorchServe, without the request for this document
    return _document("TorchServe APIs", VERSION, _paths(operations))


def model_management_document(model_name: str) -> dict[str, Any]:
    # TorchServe does not fill the names into these paths.
    paths = api_document([Role.MANAGEMENT])["paths"]
    paths = {path: methods for path, methods in paths.items() if "{model_name}" in path}
    return _document(f"RESTful Management API for: {model_name}", VERSION, paths)


def model_prediction_document(model_name: str) -> dict[str, Any]:
    # `/prediction` is TorchServe's spelling; its document of a model has no parameters.
    paths: dict[str, Any] = {f"/prediction/{model_name}": {}}
    for path, methods in _paths({"predictions", "kserveV1Predict", "kserveV2Infer"}).items():
        own, operation = path.replace("{model_name}", model_name), dict(methods["post"])
        kept = {"header"}
        if operation["operationId"] == "predictions":
            own, operation["operationId"], kept = f"/prediction/{model_name}", "predict", set()
        operation["parameters"] = [it for it in operation["parameters"] if it["in"] in kept]
        paths[own] = {"post": operation}
    return _document(f"RESTful API for: {model_name}", "1.0.0", paths)


def operations_of(paths: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield path, method, operation


def _paths(operations: Collection[str]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, method, operation in operations_of(_whole()["paths"]):
        if operation["operationId"] in operations:
            paths.setdefault(path, {})[method] = operation
    return paths


def _document(title: str, version: str, paths: dict[str, Any]) -> dict[str, Any]:
    return {**_whole(), "info": {"title": title, "version": version}, "paths": paths}


@cache
def _whole() -> dict[str, Any]:
    """Returns the document of all ports, with the parameters of models added."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time, if it is there
    text = Path(__file__).with_name("openapi.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.load(text, loader)  # noqa: S506 - both are safe
    del document["shared"]
    register = document["paths"]["/models"]["post"]
    # The description of a version shares this dictionary.
    answers = document["paths"]["/models/{model_name}"]["get"]["responses"]
    described = answers["200"]["content"]["application/json"]["schema"]["items"]["properties"]
    for parameter in PARAMETERS:
        schema = _TYPES[parameter.kind]
        if parameter.rest:
            entry = {"in": "query", "name": parameter.rest, "required": False, "schema": schema}
            about = f"{parameter.doc} In {parameter.unit}." if parameter.unit else parameter.doc
            register["parameters"].append(entry | {"description": about})
        if parameter.is_described:
            described[parameter.word] = schema
    return document
