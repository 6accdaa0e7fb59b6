"""Describes the models that are served, as their workers do: for the page and for OpenAPI.

What a worker says of its model comes from the model's own code: it need not have the right shape.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerStatus
from batching.store.registry.registry import Registry
from ingress.page.json_schemas import openapi_schema

_KEPT_S = 1.0  # for all who look

_JSON, _TEXT, _BYTES = "application/json", "text/plain", "application/octet-stream"
# The kind of a model's input -> the content types that it comes in.
_BODIES: Mapping[str, Sequence[str]] = {
    "json": (_JSON,),
    "text": (_TEXT,),
    "image": ("image/jpeg", "image/png"),
    "bytes": (_BYTES,),
    "tensor": (_JSON, _BYTES),
    "form": ("multipart/form-data", _JSON),
}
_ANSWERS: Mapping[str, str] = {"str": _TEXT, "bytes": _BYTES, "Image": "image/png"}


class Side(msgspec.Struct, omit_defaults=True):
    """Describes what goes into a model, or comes out: `type` as its author wrote it."""

    kind: str = ""
    type: str = ""
    schema: dict[str, Any] = {}


class Tensor(msgspec.Struct):
    """A tensor of the Open Inference Protocol."""

    name: str
    datatype: str
    shape: list[int]


class Interface(msgspec.Struct, omit_defaults=True):
    """Reads what a worker says of its model: nothing, for TorchServe's handlers."""

    summary: str = ""
    input: Side | None = None
    output: Side | None = None
    example: Any = msgspec.UNSET
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []


def interface_of(workers: Iterable[WorkerStatus]) -> Interface:
    said = next((one.interface for one in workers if one.interface), {})
    try:
        return msgspec.convert(said, Interface)
    except msgspec.ValidationError:
        return Interface()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Holds the default version of a model, the names of all versions, and its workers."""

    spec: ModelSpec
    versions: Sequence[str]
    workers: Sequence[WorkerStatus]

    def to_document(self) -> dict[str, Any]:
        """Returns what the page shows. No errors of workers: these are for operators."""
        spec = self.spec
        return {
            "name": spec.model_name,
            "version": spec.model_version,
            "versions": list(self.versions),
            "is_handler": not spec.decodes_itself,
            "batch_size": spec.batch_size,
            "max_batch_delay_ms": spec.max_batch_delay_ms,
            "batch_policy": spec.batch_policy,
            "workers": [{"state": one.state, "device": one.device} for one in self.workers],
            "interface": msgspec.to_builtins(interface_of(self.workers)),
        }

    def to_operation(self) -> dict[str, Any]:
        """Returns OpenAPI's description of a prediction."""
        interface = interface_of(self.workers)
        wanted, given = interface.input or Side(), interface.output or Side()
        has_example = interface.example is not msgspec.UNSET
        example = {"example": interface.example} if has_example else {}
        kinds = _BODIES.get(wanted.kind, (_JSON, _TEXT, _BYTES))
        bodies = {one: {"schema": _schema(one, wanted), **example} for one in kinds}
        kind = _ANSWERS.get(given.type, _JSON)
        answer, error = _schema(kind, given), {"$ref": "#/components/schemas/Error"}
        return {
            "tags": ["models"],
            "operationId": f"predict_{self.spec.model_name}",
            "summary": interface.summary,
            "requestBody": {"content": bodies},
            "responses": {
                "200": {"description": "The model's answer", "content": {kind: {"schema": answer}}},
                "default": {
                    "description": "Refused or failed",
                    "content": {_JSON: {"schema": error}},
                },
            },
        }


class ServedModels:
    """Reads them from the registry, at most once a second."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._models: list[ServedModel] = []
        self._good_until_s = 0.0

    def all(self) -> list[ServedModel]:
        """Returns them by name.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        if time.monotonic() > self._good_until_s:
            alive = self._registry.alive_nodes()
            self._models = [
                ServedModel(spec, sorted(entry.versions), self._registry.workers(spec.key, alive))
                for _, entry in sorted(self._registry.snapshot().items())
                for spec in [entry.versions[entry.default_version]]
            ]
            self._good_until_s = time.monotonic() + _KEPT_S
        return self._models

    def described_in(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Returns this OpenAPI document with a path for each model, in front of the others."""
        paths = {
            f"/predictions/{model.spec.model_name}": {"post": model.to_operation()}
            for model in self.all()
        }
        info = {**document["info"], "title": "torchferry"}
        tags = [{"name": "models"}]
        return {**document, "info": info, "tags": tags, "paths": paths | document["paths"]}


def _schema(content_type: str, side: Side) -> dict[str, Any]:
    if content_type in (_JSON, "multipart/form-data"):
        return openapi_schema(side.schema)
    return {"type": "string"} if content_type == _TEXT else {"type": "string", "format": "binary"}
