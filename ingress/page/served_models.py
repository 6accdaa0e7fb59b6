"""Describes the models that are served, as their workers do: for the page and for OpenAPI.

What a worker says of its model comes from the model's own code: it need not have the right shape.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerStatus
from batching.store.registry.registry import Registry
from ingress.page.json_schemas import openapi_schema
from ingress.torchserve import schemas

_KEPT_S = 1.0  # for all who look

_JSON, _TEXT, _BYTES = "application/json", "text/plain", "application/octet-stream"
# The kind of a model's input -> the content types that it comes in.
_BODIES: Mapping[Any, Sequence[str]] = {
    "json": (_JSON,),
    "text": (_TEXT,),
    "image": ("image/jpeg", "image/png"),
    "bytes": (_BYTES,),
    "tensor": (_JSON, _BYTES),
    "form": ("multipart/form-data", _JSON),
}
_ANSWERS: Mapping[Any, str] = {"str": _TEXT, "bytes": _BYTES, "Image": "image/png"}


def interface_of(workers: Iterable[WorkerStatus]) -> Mapping[str, Any]:
    """Returns what the workers of a version say that it takes and gives; empty if nothing."""
    return next((one.interface for one in workers if one.interface), {})


def tensors_of(interface: Mapping[str, Any], word: str) -> list[Any]:
    """Returns the tensors of the Open Inference Protocol, its `inputs` or its `outputs`."""
    found = interface.get(word)
    return found if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The default version of a model, the names of all of them, and its workers."""

    spec: ModelSpec
    versions: Sequence[str]
    workers: Sequence[WorkerStatus]

    def to_document(self) -> dict[str, Any]:
        """Returns what the page shows. No errors of workers: these are for operators."""
        spec = self.spec
        return {
            **interface_of(self.workers),
            "name": spec.model_name,
            "version": spec.model_version,
            "versions": list(self.versions),
            "batch_size": spec.batch_size,
            "max_batch_delay_ms": spec.max_batch_delay_ms,
            "batch_policy": spec.batch_policy,
            "workers": [{"state": one.state, "device": one.device} for one in self.workers],
        }

    def to_operation(self) -> dict[str, Any]:
        """Returns OpenAPI's description of a prediction."""
        interface = interface_of(self.workers)
        given, wanted = _part(interface, "output"), _part(interface, "input")
        example = {"example": interface["example"]} if "example" in interface else {}
        body = {
            kind: {"schema": _schema(kind, wanted), **example}
            for kind in _BODIES.get(str(wanted.get("kind")), (_JSON, _TEXT, _BYTES))
        }
        kind = _ANSWERS.get(str(given.get("type")), _JSON)
        return {
            "tags": ["models"],
            "operationId": f"predict_{self.spec.model_name}",
            "summary": str(interface.get("summary", "")),
            "requestBody": {"content": body},
            "responses": {
                "200": schemas.answer(_schema(kind, given), "The model's answer", kind),
                "default": schemas.ERROR,
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
        return {**document, "tags": [{"name": "models"}], "paths": paths | document["paths"]}


def _part(interface: Mapping[str, Any], word: str) -> Mapping[str, Any]:
    part = interface.get(word)
    return part if isinstance(part, Mapping) else {}


def _schema(content_type: str, part: Mapping[str, Any]) -> dict[str, Any]:
    if content_type in (_JSON, "multipart/form-data"):
        return openapi_schema(part.get("schema"))
    return schemas.TEXT if content_type == _TEXT else schemas.BYTES
