"""OpenAPI documents: small but valid. Source: TorchServe 0.12 `OpenApiUtils`."""

import importlib.metadata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from batching.models.spec import PARAMETERS
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
                *(one.rest for one in PARAMETERS if one.rest),
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
    """Returns the document of a listener with these roles."""
    operations = [op for role in Role if role in roles for op in _OPERATIONS[role]]
    return _document("TorchServe APIs", VERSION, operations)


def model_prediction_document(model_name: str) -> dict[str, Any]:
    """Returns the document of one model on the inference port.

    `/prediction` is TorchServe's spelling.
    """
    operations: list[_Operation] = [
        ("post", f"/prediction/{model_name}", "predict", ()),
        ("post", f"/v1/models/{model_name}:predict", "kserveV1Predict", ()),
        ("post", f"/v2/models/{model_name}/infer", "kserveV2Infer", ()),
    ]
    return _document(f"RESTful API for: {model_name}", "1.0.0", operations)


def model_management_document(model_name: str) -> dict[str, Any]:
    """Returns the document of one model on the management port."""
    # TorchServe leaves the places for the names in these paths open.
    operations = [op for op in _OPERATIONS[Role.MANAGEMENT] if _NAME in op[1]]
    return _document(f"RESTful Management API for: {model_name}", VERSION, operations)


def _document(title: str, version: str, operations: Iterable[_Operation]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for method, path, operation_id, query in operations:
        paths.setdefault(path, {})[method] = {
            "operationId": operation_id,
            "parameters": _parameters(path, query),
            **_request_body(path),
            "responses": {
                **{code: _answer(path, method) for code in _codes(path, query)},
                "default": {
                    "description": "Refused or failed",
                    "content": {"application/json": {"schema": _ERROR_SCHEMA}},
                },
            },
        }
    return {"openapi": "3.0.1", "info": {"title": title, "version": version}, "paths": paths}


def _parameters(path: str, query: Sequence[str]) -> list[dict[str, Any]]:
    in_path = [name for name in ("model_name", "model_version") if f"{{{name}}}" in path]
    return [{"in": "path", "name": name, "required": True, "schema": _TEXT} for name in in_path] + [
        {
            "in": "query",
            "name": name,
            "required": name == "url",
            "schema": _PARAMETER_SCHEMAS.get(name, _TEXT),
        }
        for name in query
    ]


def _request_body(path: str) -> dict[str, Any]:
    if not path.startswith(_WITH_BODY):
        return {}
    return {"requestBody": {"content": _of_handler(path)}}


def _of_handler(path: str) -> dict[str, Any]:
    return _BYTES if path.startswith(_PREDICTION) else _JSON


def _codes(path: str, query: Sequence[str]) -> tuple[str, ...]:
    """Returns the status codes whose answers are no errors."""
    if "synchronous" in query:
        return "200", "202", "206"
    return {"/ping": ("200", "500"), "/readyz": ("200", "503")}.get(path, ("200",))


def _answer(path: str, method: str) -> dict[str, Any]:
    if path.startswith(_WITH_BODY):
        return {"description": "The handler's answer", "content": _of_handler(path)}
    if path == "/metrics":
        return {"description": "Metrics", "content": {"text/plain": {"schema": _TEXT}}}
    schema = _ANSWER_SCHEMAS.get(f"{method} {path}", _STATUS)
    return {"description": "Done", "content": {"application/json": {"schema": schema}}}


# Clients are generated from these documents: what has no type here has none in them, and what has
# no body or content cannot be sent, or is thrown away.
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_FLAG = {"type": "boolean"}
_OBJECT = {"type": "object"}
_KINDS: Mapping[type, dict[str, Any]] = {
    bool: _FLAG,
    int: _NUMBER,
    str: _TEXT,
    list: {"type": "array", "items": _NUMBER},
}

_PARAMETER_SCHEMAS = {
    "customized": _FLAG,
    "synchronous": _FLAG,
    **dict.fromkeys(("limit", "min_worker", "max_worker"), _NUMBER),
    **{one.rest: _KINDS[one.kind] for one in PARAMETERS if one.rest},
}

# What handlers take and give is theirs, but generators make nothing of a body of any type.
_PREDICTION = "/prediction"
_WITH_BODY = (_PREDICTION, "/v1/", "/v2/")
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_JSON = {"application/json": {"schema": _OBJECT}}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_STATUS = _object(status=_TEXT)
_DESCRIPTION = _list_of(
    _object(
        modelName=_TEXT,
        modelVersion=_TEXT,
        modelUrl=_TEXT,
        runtime=_TEXT,
        **{one.word: _KINDS[one.kind] for one in PARAMETERS if one.is_described},
        loadedAtStartup=_FLAG,
        workers=_list_of(
            _object(id=_TEXT, startTime=_TEXT, status=_TEXT, memoryUsage=_NUMBER, pid=_NUMBER)
        ),
        jobQueueStatus=_object(remainingCapacity=_NUMBER, pendingRequests=_NUMBER),
        isDefault=_FLAG,
    )
)
_ANSWER_SCHEMAS = {
    "options /": _OBJECT,
    "get /api-description": _OBJECT,
    "get /models": _object(
        nextPageToken=_TEXT, models=_list_of(_object(modelName=_TEXT, modelUrl=_TEXT))
    ),
    f"get /models/{_NAME}": _DESCRIPTION,
    f"get /models/{_VERSIONED}": _DESCRIPTION,
    "get /downloads": _list_of(_OBJECT),
    "get /nodes": _list_of(_OBJECT),
}

_ERROR_SCHEMA = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {
        "code": {"type": "integer"},
        "type": {"type": "string"},
        "message": {"type": "string"},
    },
}
