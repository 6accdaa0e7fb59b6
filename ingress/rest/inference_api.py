"""Answers the inference port's routes, predictions included, so that any WSGI server can run them.

Source: TorchServe 0.12 inference API, `OpenInferenceProtocolRequestHandler`; KServe Open Inference
Protocol v2, REST.
"""

import msgspec
from flask import Response, g, request

from batching.errors import NotFound
from batching.models.entry import check_names, existing
from batching.models.spec import ModelSpec
from ingress.http1.exchange import HttpAnswer
from ingress.predictions.prediction import Prediction
from ingress.rest.page_api import interface_of
from ingress.rest.wsgi_bridge import flask_exchange
from ingress.services import Services
from ingress.torchserve.answers import json_answer, status_answer
from ingress.torchserve.openapi import VERSION, model_prediction_document
from ingress.torchserve.routes import LIVE_TEXT, parse_prediction_path

_EXTENSIONS = ["kserve", "kubeflow", "binary_tensor_data"]
_NOT_READY = 503


class WorkflowNotFound(NotFound, type="WorkflowNotFoundException", reason="workflow_not_found"):
    """Refuses workflows, which TorchServe has given up, too."""


class InferenceView:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._health = services.health

    def predict(self) -> HttpAnswer | Response | None:
        """Returns the answer to a prediction; None for any other request."""
        # The path as it was sent: Flask turns several slashes at the beginning into one.
        is_plain = not request.environ["PATH_INFO"].startswith("//")
        target = parse_prediction_path(request.path) if is_plain else None
        if target is None or request.method == "OPTIONS":
            return None
        g.is_prediction = True
        # Without WSGI, too, the body is read, or refused as too large, before anything else.
        body, exchange = request.get_data(cache=False), flask_exchange()
        if self._services.keys is not None:
            exchange.headers = [item for item in exchange.headers if item[0] != "authorization"]
            exchange.fields.pop("authorization", None)
        prediction = Prediction(self._services.http_predictions, target, exchange)
        self._services.loop.call_soon_threadsafe(prediction.submit, body)
        del body
        return exchange.answered.result()

    def predict_workflow(self, tail: str) -> HttpAnswer:
        raise WorkflowNotFound(f"Workflow not found: {tail}")

    def document(self, model_name: str, tail: str = "") -> HttpAnswer:
        check_names(model_name)
        existing(self._services.registry.get(model_name), model_name)
        return json_answer(model_prediction_document(model_name))

    def ping(self) -> HttpAnswer:
        is_healthy = self._health.is_healthy()
        return status_answer("Healthy") if is_healthy else status_answer("Unhealthy", 500)

    def livez(self) -> HttpAnswer:
        return status_answer(LIVE_TEXT)

    def readyz(self) -> HttpAnswer:
        reason = self._health.why_not_ready()
        if self._services.keys is not None:
            # A probe has no key, so its answer names no models.
            reason = reason.partition(":")[0]
        return status_answer(reason, _NOT_READY) if reason else status_answer("Ready")

    # --- descriptions for clients of the Open Inference Protocol, and of KServe's v1

    def server(self) -> HttpAnswer:
        # The first key has TorchServe's spelling, the second the right one.
        names = {"extenstion": _EXTENSIONS[:2], "extensions": _EXTENSIONS}
        return json_answer({"name": "torchferry", "version": VERSION, **names})

    def live(self) -> HttpAnswer:
        return json_answer({"live": True})

    def ready(self) -> HttpAnswer:
        is_ready = not self._health.why_not_ready()
        return json_answer({"ready": is_ready}, 200 if is_ready else _NOT_READY)

    def model(self, model_name: str, model_version: str | None = None) -> HttpAnswer:
        spec = self._resolve(model_name, model_version)
        registry = self._services.registry
        entry = registry.get(model_name)
        # TorchServe's archives do not describe their handlers' inputs.
        interface = interface_of(registry.workers(spec.key))
        return json_answer(
            {
                "name": model_name,
                "versions": sorted(entry.versions) if entry else [spec.model_version],
                "platform": "pytorch",
                "inputs": msgspec.to_builtins(interface.inputs),
                "outputs": msgspec.to_builtins(interface.outputs),
            }
        )

    def model_ready(self, model_name: str, model_version: str | None = None) -> HttpAnswer:
        spec = self._resolve(model_name, model_version)
        is_ready = self._health.is_ready(spec)
        document = {"name": model_name, "ready": is_ready}
        return json_answer(document, 200 if is_ready else _NOT_READY)

    def _resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        predictor = self._services.predictor
        return self._services.on_loop(predictor.resolve(model_name, model_version))
