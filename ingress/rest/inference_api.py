"""Answers the inference port's routes, predictions included, so that any WSGI server can run them.

Source: TorchServe 0.12 inference API.
"""

from flask import Blueprint, Response, request

from batching.errors import NotFound
from batching.models.entry import check_names, existing
from ingress.health import LIVE_TEXT
from ingress.http1.exchange import Answer
from ingress.predictions.prediction import AwaitedPrediction
from ingress.predictions.streamed_answer import StreamedAnswer
from ingress.rest.responses import (
    base_url,
    job_response,
    json_response,
    lower_case_headers,
    status_response,
    stream_response,
    to_response,
)
from ingress.rest.rules import ANY_METHOD, add_routes
from ingress.services import Services
from ingress.torchserve.answers import not_found
from ingress.torchserve.openapi import model_prediction_document
from ingress.torchserve.prediction_paths import parse_prediction_path
from ingress.torchserve.routes import INFERENCE

# Paths that only look like those of predictions.
_NO_PREDICTIONS = (
    "/predictions/<path:_>",
    "/explanations/<path:_>",
    "/v1/models/<path:_>",
    "/v2/models/<path:_>",
    "/models/<path:_>/invoke",
)


class WorkflowNotFound(NotFound):
    """Refuses workflows, which TorchServe has given up as well."""

    type = "WorkflowNotFoundException"
    reason = "workflow_not_found"


def inference_blueprint(services: Services) -> Blueprint:
    """Returns the routes of predictions and probes."""
    blueprint = Blueprint("inference", __name__)
    view = _InferenceView(services)
    # Before any rule, since both HTTP doors share one parser of these paths.
    blueprint.before_app_request(view.predict)
    for rule in _NO_PREDICTIONS:
        blueprint.add_url_rule(rule, f"no {rule}", view.deny, methods=ANY_METHOD)
    add_routes(blueprint, view, INFERENCE)
    return blueprint


class _InferenceView:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._health = services.health

    def predict(self) -> Response | None:
        # The path as it was sent: Flask makes one slash of several at the beginning.
        is_plain = not request.environ["PATH_INFO"].startswith("//")
        target = parse_prediction_path(request.path) if is_plain else None
        if target is None or request.method == "OPTIONS":
            return None
        # As in the router, the body is read, or refused as too large, before anything else.
        body = request.get_data(cache=False)
        headers = lower_case_headers(request)
        if self._services.keys is not None:
            headers.pop("authorization", None)
        query = request.query_string.decode("utf-8", "replace")
        services = self._services
        url = base_url(services, request)

        async def answered() -> Answer | StreamedAnswer:
            shared = services.http_predictions
            return await AwaitedPrediction(shared, target, headers, query, url).answer(body)

        answer = services.on_loop(answered())
        if isinstance(answer, StreamedAnswer):
            return stream_response(answer, services.on_loop)
        return to_response(answer)

    def deny(self, _: str) -> Response:
        raise not_found()

    def predict_workflow(self, tail: str) -> Response:
        raise WorkflowNotFound(f"Workflow not found: {tail}")

    def document(self, model_name: str, tail: str = "") -> Response:
        check_names(model_name)
        existing(self._services.registry.get(model_name), model_name)
        return json_response(model_prediction_document(model_name))

    def answer_job(self, **_: str) -> Response:
        return job_response(self._services, request)

    def ping(self) -> Response:
        if self._health.is_healthy():
            return status_response("Healthy")
        return status_response("Unhealthy", status=500)

    def livez(self) -> Response:
        return status_response(LIVE_TEXT)

    def readyz(self) -> Response:
        reason = self._health.why_not_ready()
        if self._services.keys is not None:
            # A probe has no key, so its answer names no models.
            reason = reason.partition(":")[0]
        return status_response(reason, status=503) if reason else status_response("Ready")
