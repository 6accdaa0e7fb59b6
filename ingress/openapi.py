"""OpenAPI documents: small but valid. Source: TorchServe 0.12 `OpenApiUtils`."""

import importlib.metadata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ingress.role import Role

VERSION = importlib.metadata.version("torchferry")

_NAME = "{model_name}"
_VERSIONED = "{model_name}/{model_version}"

# Method, path, operation, query parameters.
_Operation = tuple[str, str, str, Sequence[str]]
_OPERATIONS: Mapping[Role, Sequence[_Operation]] = {
    Role.INFERENCE: (
        ("options", "/", "apiDescription", ()),
        ("get", "/ping", "ping", ()),
        ("post", f"/v1/models/{_NAME}:predict", "kserveV1Predict", ()),
        ("post", f"/v2/models/{_NAME}/infer", "kserveV2Infer", ()),
        ("post", f"/predictions/{_NAME}", "predictions", ()),
        ("post", f"/predictions/{_VERSIONED}", "versionPredictions", ()),
        ("get", "/api-description", "api-description", ()),
        ("get", "/livez", "live", ()),
        ("get", "/readyz", "ready", ()),
    ),
    Role.MANAGEMENT: (
        ("options", "/", "apiDescription", ()),
        ("get", "/models", "listModels", ("limit", "next_page_token")),
        (
            "post",
            "/models",
            "registerModel",
            (
                "url",
                "model_name",
                "handler",
                "runtime",
                "batch_size",
                "max_batch_delay",
                "batch_policy",
                "latency_slo_ms",
                "response_timeout",
                "startup_timeout",
                "initial_workers",
                "synchronous",
            ),
        ),
        ("get", f"/models/{_NAME}", "describeModel", ("customized",)),
        ("put", f"/models/{_NAME}", "setAutoScale", ("min_worker", "max_worker", "synchronous")),
        ("delete", f"/models/{_NAME}", "unregisterModel", ()),
        ("get", f"/models/{_VERSIONED}", "versionDescribeModel", ("customized",)),
        (
            "put",
            f"/models/{_VERSIONED}",
            "versionSetAutoScale",
            ("min_worker", "max_worker", "synchronous"),
        ),
        ("delete", f"/models/{_VERSIONED}", "versionUnregisterModel", ()),
        ("put", f"/models/{_VERSIONED}/set-default", "setDefault", ()),
        ("get", "/downloads", "listDownloads", ()),
        ("get", "/nodes", "listNodes", ()),
        ("get", "/api-description", "api-description", ()),
    ),
    Role.METRICS: (("get", "/metrics", "metrics", ("name[]",)),),
}


def api_document(roles: Collection[Role]) -> dict[str, Any]:
    """The document of a listener with these roles."""
    operations = [op for role in Role if role in roles for op in _OPERATIONS[role]]
    return _document("TorchServe APIs", VERSION, operations)


def model_prediction_document(model_name: str) -> dict[str, Any]:
    """The document of one model on the inference port; `/prediction` is TorchServe's spelling."""
    operations: list[_Operation] = [
        ("post", f"/prediction/{model_name}", "predict", ()),
        ("post", f"/v1/models/{model_name}:predict", "kserveV1Predict", ()),
        ("post", f"/v2/models/{model_name}/infer", "kserveV2Infer", ()),
    ]
    return _document(f"RESTful API for: {model_name}", "1.0.0", operations)


def model_management_document(model_name: str) -> dict[str, Any]:
    """The document of one model on the management port."""
    # TorchServe leaves the places for the names in these paths open.
    operations = [op for op in _OPERATIONS[Role.MANAGEMENT] if _NAME in op[1]]
    return _document(f"RESTful Management API for: {model_name}", VERSION, operations)


def _document(title: str, version: str, operations: Iterable[_Operation]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for method, path, operation_id, query in operations:
        paths.setdefault(path, {})[method] = {
            "operationId": operation_id,
            "parameters": _parameters(path, query),
            "responses": {
                "200": {"description": "Done"},
                "default": {
                    "description": "Refused or failed",
                    "content": {"application/json": {"schema": _ERROR_SCHEMA}},
                },
            },
        }
    return {"openapi": "3.0.1", "info": {"title": title, "version": version}, "paths": paths}


def _parameters(path: str, query: Sequence[str]) -> list[dict[str, Any]]:
    in_path = [name for name in ("model_name", "model_version") if f"{{{name}}}" in path]
    text = {"type": "string"}
    return [{"in": "path", "name": name, "required": True, "schema": text} for name in in_path] + [
        {"in": "query", "name": name, "required": name == "url", "schema": text} for name in query
    ]


_ERROR_SCHEMA = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {
        "code": {"type": "integer"},
        "type": {"type": "string"},
        "message": {"type": "string"},
    },
}
