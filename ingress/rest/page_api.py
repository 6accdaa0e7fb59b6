"""Answers browsers: the page, what it polls, and the API document with its reader.

Nothing here changes anything. What a model says of itself is text for the page's own script.
"""

import html
import importlib.util
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, request

from batching.errors import StoreUnavailable
from ingress.page.served_models import ServedModels
from ingress.rest.responses import json_response, to_response
from ingress.rest.rules import add_routes
from ingress.services import Services
from ingress.torchserve.answers import not_found, typed_answer
from ingress.torchserve.openapi import VERSION
from ingress.torchserve.routes import PAGE

_FILES = Path(__file__).parents[1] / "page" / "files"
# Links of the page, and of the JSON for clients that are no browsers.
_LINKS = {"docs": "/docs", "openapi": "/openapi.json", "models": "/page/models", "ready": "/readyz"}
_HTML = "text/html; charset=utf-8"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; style-src 'self'{}; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_blueprint(services: Services, document: Mapping[str, Any]) -> Blueprint:
    blueprint = Blueprint("page", __name__)
    add_routes(blueprint, _PageView(services, document), PAGE)
    return blueprint


class _PageView:
    def __init__(self, services: Services, document: Mapping[str, Any]) -> None:
        self._document = document
        self._models = ServedModels(services.probe_registry)
        self._batches = services.metrics.recent_batches
        self._processes = services.siblings.count

    def index(self) -> Response:
        wanted = request.accept_mimetypes.best_match(["application/json", "text/html"])
        if wanted != "text/html":
            return json_response({"name": "torchferry", "version": VERSION, "links": _LINKS})
        names: list[str] = []
        with suppress(StoreUnavailable):  # which the page says itself
            names = [html.escape(model.spec.model_name) for model in self._models.all()]
        rows = "".join(f"<li><code>/predictions/{name}</code></li>" for name in names)
        page = (_FILES / "index.html").read_bytes()
        return _for_browsers(page.replace(b"<!--models-->", rows.encode()), _HTML)

    def models(self) -> Response:
        return json_response([model.to_document() for model in self._models.all()])

    def batches(self) -> Response:
        # The clock is the machine's: processes that share the port may answer in turns.
        after_s = request.args.get("after", 0.0, float)
        found = [
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
        return json_response({"now_s": now_s, "processes": self._processes, "batches": found})

    def openapi(self) -> Response:
        return json_response(self._models.described_in(self._document))

    def docs(self) -> Response:
        # Swagger UI, if it is there, styles some elements by themselves.
        page = (_FILES / "docs.html").read_bytes()
        return _for_browsers(page, _HTML, " 'unsafe-inline'")

    def file(self) -> Response:
        # Only paths of the table come here.
        name = request.path.rpartition("/")[2]
        folder = _reader() if name.startswith("swagger-") else _FILES
        if folder is None:
            raise not_found()
        return _for_browsers((folder / name).read_bytes(), _TYPES[name.rpartition(".")[2]])


def _for_browsers(body: bytes, content_type: str, more_styles: str = "") -> Response:
    response = to_response(typed_answer(body, content_type))
    response.headers["Content-Security-Policy"] = _POLICY.format(more_styles)
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _reader() -> Path | None:
    """Returns the folder of Swagger UI; None where its package is not installed."""
    found = importlib.util.find_spec("swagger_ui_bundle")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("vendor/swagger-ui-*"), None)
