"""Answers browsers: the page, what it polls, and the API document with its reader.

Nothing here changes anything. A worker's description of its model comes from the model's own code:
it may have any shape, and the page's script shows it as text only.
"""

import html
import importlib.util
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from flask import request

from batching.errors import StoreUnavailable
from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerStatus
from ingress.http1.exchange import HttpAnswer
from ingress.services import Services
from ingress.torchserve.answers import json_answer, not_found, typed_answer
from ingress.torchserve.openapi import VERSION

_FILES = Path(__file__).with_name("page")
# Links of the page, and of the JSON for clients that are no browsers.
_LINKS = {"docs": "/docs", "openapi": "/openapi.json", "models": "/page/models", "ready": "/readyz"}
_HTML = "text/html; charset=utf-8"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; style-src 'self'{}; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_JSON, _TEXT, _BYTES = "application/json", "text/plain", "application/octet-stream"
_FORM = "multipart/form-data"
# The kind of a model's input -> the content types that it comes in.
_BODIES: Mapping[str, tuple[str, ...]] = {
    "json": (_JSON,),
    "text": (_TEXT,),
    "image": ("image/jpeg", "image/png"),
    "bytes": (_BYTES,),
    "tensor": (_JSON, _BYTES),
    "form": (_FORM, _JSON),
}
_ANSWERS: Mapping[str, str] = {"str": _TEXT, "bytes": _BYTES, "Image": "image/png"}

_SCHEMA_TYPES = ("object", "array", "string", "number", "integer", "boolean")
_LEVELS = 16


class Side(msgspec.Struct, omit_defaults=True):
    """Describes a model's input or output; `type` as its author wrote it."""

    kind: str = ""
    type: str = ""
    schema: dict[str, Any] = {}


class ProtocolTensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class Interface(msgspec.Struct, omit_defaults=True):
    """Holds a worker's description of its model; empty for TorchServe's handlers."""

    summary: str = ""
    input: Side | None = None
    output: Side | None = None
    example: Any = msgspec.UNSET
    inputs: list[ProtocolTensor] = []
    outputs: list[ProtocolTensor] = []


def interface_of(workers: Iterable[WorkerStatus]) -> Interface:
    described = next((worker.interface for worker in workers if worker.interface), {})
    try:
        return msgspec.convert(described, Interface)
    except msgspec.ValidationError:
        return Interface()


class ServedModel(NamedTuple):
    """Holds a model's default version, the names of all versions, and its workers."""

    spec: ModelSpec
    versions: list[str]
    workers: list[WorkerStatus]

    def to_document(self) -> dict[str, Any]:
        """Returns what the page shows; without the workers' errors, which are for operators."""
        spec = self.spec
        return {
            "name": spec.model_name,
            "version": spec.model_version,
            "versions": self.versions,
            "is_handler": not spec.decodes_itself,
            "batch_size": spec.batch_size,
            "max_batch_delay_ms": spec.max_batch_delay_ms,
            "batch_policy": spec.batch_policy,
            "workers": [{"state": it.state, "device": it.device} for it in self.workers],
            "interface": msgspec.to_builtins(interface_of(self.workers)),
        }

    def to_operation(self) -> dict[str, Any]:
        interface = interface_of(self.workers)
        wanted, given = interface.input or Side(), interface.output or Side()
        has_example = interface.example is not msgspec.UNSET
        example = {"example": interface.example} if has_example else {}
        types = _BODIES.get(wanted.kind, (_JSON, _TEXT, _BYTES))
        kind = _ANSWERS.get(given.type, _JSON)
        answer = {kind: {"schema": _schema(kind, given)}}
        error = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
        return {
            "tags": ["models"],
            "operationId": f"predict_{self.spec.model_name}",
            "summary": interface.summary,
            "requestBody": {
                "content": {it: {"schema": _schema(it, wanted), **example} for it in types}
            },
            "responses": {
                "200": {"description": "The model's answer", "content": answer},
                "default": {"description": "Refused or failed", "content": error},
            },
        }


class PageView:
    def __init__(self, services: Services, document: Mapping[str, Any]) -> None:
        self._document = document
        self._registry = services.probe_registry
        self._batches = services.metrics.recent_batches
        self._processes = services.siblings.count

    def index(self) -> HttpAnswer:
        wanted = request.accept_mimetypes.best_match(["application/json", "text/html"])
        if wanted != "text/html":
            return json_answer({"name": "torchferry", "version": VERSION, "links": _LINKS})
        names: list[str] = []
        with suppress(StoreUnavailable):  # the page says it itself
            names = [html.escape(model.spec.model_name) for model in self._models()]
        rows = "".join(f"<li><code>/predictions/{name}</code></li>" for name in names)
        page = (_FILES / "index.html").read_bytes()
        return _for_browsers(page.replace(b"<!--models-->", rows.encode()), _HTML)

    def models(self) -> HttpAnswer:
        return json_answer([model.to_document() for model in self._models()])

    def batches(self) -> HttpAnswer:
        # The clock is the machine's: processes that share the port may answer in turns.
        after_s = request.args.get("after", 0.0, float)
        batches = [
            {
                "at_s": left_s,
                "model": key.model_name,
                "size": timing.batch_size,
                "full_size": full_size,
                "closed_by": timing.closed_by,
                "wait_ms": timing.queue_us / 1000,
                "handler_ms": timing.handler_us / 1000,
            }
            for left_s, key, full_size, timing in self._batches.copy()
            if left_s > after_s
        ]
        now_s = time.monotonic()
        return json_answer({"now_s": now_s, "processes": self._processes, "batches": batches})

    def openapi(self) -> HttpAnswer:
        """Answers with the API document, headed by a path for each model."""
        document = self._document
        paths = {
            f"/predictions/{model.spec.model_name}": {"post": model.to_operation()}
            for model in self._models()
        }
        paths |= document["paths"]
        info = document["info"] | {"title": "torchferry"}
        return json_answer({**document, "info": info, "tags": [{"name": "models"}], "paths": paths})

    def docs(self) -> HttpAnswer:
        # Swagger UI, if it is installed, has inline styles.
        page = (_FILES / "docs.html").read_bytes()
        return _for_browsers(page, _HTML, " 'unsafe-inline'")

    def file(self) -> HttpAnswer:
        # Only paths in ROUTES come here.
        name, folder = request.path.rpartition("/")[2], _FILES
        if name.startswith("swagger-"):
            package = importlib.util.find_spec("swagger_ui_bundle")
            root = Path(package.origin or "").parent if package else _FILES
            folder = next(root.glob("vendor/swagger-ui-*"), _FILES)
        if not (folder / name).is_file():
            raise not_found()
        return _for_browsers((folder / name).read_bytes(), _TYPES[name.rpartition(".")[2]])

    def _models(self) -> list[ServedModel]:
        """Returns the models, sorted by name; raises StoreUnavailable while Redis is away."""
        registry = self._registry
        alive = registry.alive_nodes()
        return [
            ServedModel(spec, sorted(entry.versions), registry.workers(spec.key, alive))
            for _, entry in sorted(registry.snapshot().items())
            for spec in [entry.versions[entry.default_version]]
        ]


def _for_browsers(body: bytes, content_type: str, more_styles: str = "") -> HttpAnswer:
    answer = typed_answer(body, content_type)
    answer.headers.append(("Content-Security-Policy", _POLICY.format(more_styles)))
    answer.headers.append(("Referrer-Policy", "no-referrer"))
    return answer


def _schema(content_type: str, side: Side) -> dict[str, Any]:
    if content_type in (_JSON, _FORM):
        return openapi_schema(side.schema)
    return {"type": "string"} if content_type == _TEXT else {"type": "string", "format": "binary"}


def openapi_schema(schema: Any, levels: int = _LEVELS) -> dict[str, Any]:
    """Returns the part of a JSON Schema that is valid in OpenAPI 3.0, too; `{}` allows anything."""
    if not isinstance(schema, Mapping) or levels == 0:
        return {}
    inner = partial(openapi_schema, levels=levels - 1)
    valid: dict[str, Any] = {}
    if (kind := schema.get("type")) in _SCHEMA_TYPES:
        valid["type"] = kind
    if kind == "array":
        valid["items"] = inner(schema.get("items"))
    if isinstance(properties := schema.get("properties"), Mapping):
        valid["properties"] = {str(name): inner(value) for name, value in properties.items()}
    if names := [name for name in _list(schema, "required") if isinstance(name, str)]:
        valid["required"] = list(dict.fromkeys(names))
    if values := _list(schema, "enum"):
        # OpenAPI allows each value once.
        valid["enum"] = list({json.dumps(value, default=str): value for value in values}.values())
    if isinstance(description := schema.get("description"), str):
        valid["description"] = description
    return valid


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
