"""Answers for health, readiness and metadata, in the Open Inference Protocol and KServe's v1.

Inference itself goes the way of every prediction. Source: KServe Open Inference Protocol v2, REST;
TorchServe 0.12 `OpenInferenceProtocolRequestHandler`.
"""

import msgspec
from flask import Blueprint, Response

from batching.errors import ServeError
from batching.models.spec import ModelSpec
from ingress.page.served_models import interface_of
from ingress.rest.responses import json_response, to_response
from ingress.rest.rules import add_routes
from ingress.services import Services
from ingress.torchserve.answers import error_answer, with_error_key
from ingress.torchserve.openapi import VERSION
from ingress.torchserve.routes import OPEN_INFERENCE

_EXTENSIONS = ["kserve", "kubeflow", "binary_tensor_data"]
_NOT_READY = 503


def open_inference_blueprint(services: Services) -> Blueprint:
    """Returns the routes that a client calls before it infers."""
    blueprint = Blueprint("open_inference", __name__)
    add_routes(blueprint, _OpenInferenceView(services), OPEN_INFERENCE)
    blueprint.register_error_handler(ServeError, _answer)
    return blueprint


class _OpenInferenceView:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._health = services.health

    def server(self) -> Response:
        # The first key has TorchServe's spelling, the second the right one.
        names = {"extenstion": _EXTENSIONS[:2], "extensions": _EXTENSIONS}
        return json_response({"name": "torchferry", "version": VERSION, **names})

    def live(self) -> Response:
        return json_response({"live": True})

    def ready(self) -> Response:
        is_ready = not self._health.why_not_ready()
        return json_response({"ready": is_ready}, 200 if is_ready else _NOT_READY)

    def model(self, model_name: str, model_version: str | None = None) -> Response:
        spec = self._resolve(model_name, model_version)
        registry = self._services.registry
        entry = registry.get(model_name)
        # An archive of TorchServe's does not say what its handler takes.
        interface = interface_of(registry.workers(spec.key))
        return json_response(
            {
                "name": model_name,
                "versions": sorted(entry.versions) if entry else [spec.model_version],
                "platform": "pytorch",
                "inputs": msgspec.to_builtins(interface.inputs),
                "outputs": msgspec.to_builtins(interface.outputs),
            }
        )

    def model_ready(self, model_name: str, model_version: str | None = None) -> Response:
        spec = self._resolve(model_name, model_version)
        is_ready = self._health.is_ready(spec)
        document = {"name": model_name, "ready": is_ready}
        return json_response(document, 200 if is_ready else _NOT_READY)

    def _resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        predictor = self._services.predictor
        return self._services.on_loop(predictor.resolve(model_name, model_version))


def _answer(error: ServeError) -> Response:
    return to_response(with_error_key(error_answer(error)))
