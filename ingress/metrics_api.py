"""The metrics port's route."""

from flask import Blueprint, Response, request

from ingress.answers import NO_CACHE_HEADERS, Answer, fresh_request_id
from ingress.metrics_text import CONTENT_TYPE, write_text
from ingress.responses import to_response
from ingress.services import Services


def metrics_blueprint(services: Services) -> Blueprint:
    """GET /metrics, with TorchServe's `name[]` filter."""
    blueprint = Blueprint("metrics", __name__)

    @blueprint.route("/metrics", methods=["GET"])
    def metrics() -> Response:
        body = write_text(services.metrics.registry.collect(), request.args.getlist("name[]"))
        headers = [
            ("x-request-id", fresh_request_id()),
            ("content-type", CONTENT_TYPE),
            *NO_CACHE_HEADERS,
        ]
        return to_response(Answer(200, headers, body))

    return blueprint
