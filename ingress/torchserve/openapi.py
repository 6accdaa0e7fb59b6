"""OpenAPI documents: small but valid. Source: TorchServe 0.12 `OpenApiUtils`."""

import importlib.metadata
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ingress.role import Role
from ingress.torchserve import schemas
from ingress.torchserve.job_schemas import JOB_SCHEMA, PREDICTED
from ingress.torchserve.route import ANY, Route
from ingress.torchserve.routes import EVERYWHERE, MANAGEMENT, PREDICTIONS, ROUTES

# What clients have a class of.
COMPONENTS: Mapping[str, dict[str, Any]] = {
    "Error": schemas.ERROR_SCHEMA,
    "Job": JOB_SCHEMA,
}
VERSION = importlib.metadata.version("torchferry")


def api_document(roles: Collection[Role]) -> dict[str, Any]:
    """Returns the document of a listener with these roles."""
    routes = [route for role in Role if role in roles for route in ROUTES[role]]
    if set(roles) != {Role.METRICS}:  # TorchServe's metrics port does not list these two
        routes = [*EVERYWHERE, *routes]
    return _document("TorchServe APIs", VERSION, routes)


def model_prediction_document(model_name: str) -> dict[str, Any]:
    """Returns the document of one model on the inference port."""
    native, *others = (
        replace(route, path=route.path.replace("{model_name}", model_name))
        for operation in ("predictions", "kserveV1Predict", "kserveV2Infer")
        for route in PREDICTIONS
        if route.operation == operation
    )
    # `/prediction` is TorchServe's spelling; and its document of a model names no parameters.
    native = replace(native, path=f"/prediction/{model_name}", operation="predict", headers=())
    return _document(f"RESTful API for: {model_name}", "1.0.0", [native, *others])


def model_management_document(model_name: str) -> dict[str, Any]:
    """Returns the document of one model on the management port."""
    # TorchServe leaves the places for the names in these paths open.
    routes = [route for route in MANAGEMENT if "{model_name}" in route.path]
    return _document(f"RESTful Management API for: {model_name}", VERSION, routes)


def _document(title: str, version: str, routes: Iterable[Route]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in routes:
        if route.operation:
            paths.setdefault(route.path, {})[_method(route)] = _operation(route)
    document = {"openapi": "3.0.1", "info": {"title": title, "version": version}, "paths": paths}
    used = {name: schema for name, schema in COMPONENTS.items() if _refers(paths, name)}
    return document | ({"components": {"schemas": used}} if used else {})


def _refers(paths: Mapping[str, Any], name: str) -> bool:
    return json.dumps(schemas.component(name)) in json.dumps(paths)


def _method(route: Route) -> str:
    if route.method == ANY:
        return "get" if route.target is None else "post"
    return route.method.lower()


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "parameters": list(_parameters(route)),
    }
    gives, body = route.gives, route.body
    if route.target is not None:
        gives = schemas.HANDLERS_JSON if route.target.url_path is None else schemas.HANDLERS_BYTES
        body = gives["content"]
        gives = {**gives, "headers": PREDICTED}
    if body is not None:
        operation["requestBody"] = {"content": body}
    answers = dict.fromkeys(route.codes, gives)
    operation["responses"] = {**answers, **route.others, "default": schemas.ERROR}
    return operation


def _parameters(route: Route) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", route.path):
        yield {"in": "path", "name": name, "required": True, "schema": schemas.TEXT}
    for name, schema in route.query.items():
        yield {"in": "query", "name": name, "required": name == "url", "schema": schema}
    for header in route.headers:
        yield {
            "in": "header",
            "name": header.name,
            "required": False,
            "schema": header.schema,
            "description": header.about,
        }
