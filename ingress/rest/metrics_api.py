"""Answers the metrics port's route."""

from collections.abc import Iterable

from flask import Blueprint, Response, request
from prometheus_client.core import Metric

from ingress.metrics.metrics_text import CONTENT_TYPE, write_text
from ingress.metrics.torchserve_metrics import LEGACY
from ingress.rest.responses import to_response
from ingress.rest.rules import add_routes
from ingress.services import Services
from ingress.torchserve.answers import typed_answer
from ingress.torchserve.routes import METRICS


def metrics_blueprint(services: Services) -> Blueprint:
    """Returns the metrics port's routes."""
    blueprint = Blueprint("metrics", __name__)
    add_routes(blueprint, _MetricsView(services), METRICS)
    return blueprint


class _MetricsView:
    def __init__(self, services: Services) -> None:
        self._services = services

    def metrics(self) -> Response:
        families = _visible(self._services)
        body = write_text(families, request.args.getlist("name[]"))
        return to_response(typed_answer(body, CONTENT_TYPE))


def _visible(services: Services) -> Iterable[Metric]:
    # Source: TorchServe 0.12 docs/metrics.md, "Metrics mode".
    mode = services.settings.metrics_mode
    if mode == "log":
        return []
    counted = services.numbers.collect()
    if mode == "legacy":
        return [one for one in counted if one.name in LEGACY]
    return [*counted, *services.metrics.store_registry.collect()]
