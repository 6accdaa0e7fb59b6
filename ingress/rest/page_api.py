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

from flask import request

from batching.errors import StoreUnavailable
from ingress.http1.exchange import Answer
from ingress.page.served_models import ServedModels
from ingress.services import Services
from ingress.torchserve.answers import json_answer, not_found, typed_answer
from ingress.torchserve.openapi import VERSION

_FILES = Path(__file__).parents[1] / "page" / "files"
# Links of the page, and of the JSON for clients that are no browsers.
_LINKS = {"docs": "/docs", "openapi": "/openapi.json", "models": "/page/models", "ready": "/readyz"}
_HTML = "text/html; charset=utf-8"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; style-src 'self'{}; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageView:
    """Answers the page and its reader of the API document."""

    def __init__(self, services: Services, document: Mapping[str, Any]) -> None:
        self._document = document
        self._models = ServedModels(services.probe_registry)
        self._batches = services.metrics.recent_batches
        self._processes = services.siblings.count

    def index(self) -> Answer:
        wanted = request.accept_mimetypes.best_match(["application/json", "text/html"])
        if wanted != "text/html":
            return json_answer({"name": "torchferry", "version": VERSION, "links": _LINKS})
        names: list[str] = []
        with suppress(StoreUnavailable):  # which the page says itself
            names = [html.escape(model.spec.model_name) for model in self._models.all()]
        rows = "".join(f"<li><code>/predictions/{name}</code></li>" for name in names)
        page = (_FILES / "index.html").read_bytes()
        return _for_browsers(page.replace(b"<!--models-->", rows.encode()), _HTML)

    def models(self) -> Answer:
        return json_answer([model.to_document() for model in self._models.all()])

    def batches(self) -> Answer:
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

    def openapi(self) -> Answer:
        """Answers with the API document, and a path for each model in front of the others."""
        document = self._document
        paths = {
            f"/predictions/{model.spec.model_name}": {"post": model.to_operation()}
            for model in self._models.all()
        }
        paths |= document["paths"]
        info = document["info"] | {"title": "torchferry"}
        return json_answer({**document, "info": info, "tags": [{"name": "models"}], "paths": paths})

    def docs(self) -> Answer:
        # Swagger UI, if it is there, styles some elements by themselves.
        page = (_FILES / "docs.html").read_bytes()
        return _for_browsers(page, _HTML, " 'unsafe-inline'")

    def file(self) -> Answer:
        # Only paths of the table come here.
        name, folder = request.path.rpartition("/")[2], _FILES
        if name.startswith("swagger-"):
            package = importlib.util.find_spec("swagger_ui_bundle")
            root = Path(package.origin or "").parent if package else _FILES
            folder = next(root.glob("vendor/swagger-ui-*"), _FILES)
        if not (folder / name).is_file():
            raise not_found()
        return _for_browsers((folder / name).read_bytes(), _TYPES[name.rpartition(".")[2]])


def _for_browsers(body: bytes, content_type: str, more_styles: str = "") -> Answer:
    answer = typed_answer(body, content_type)
    answer.headers.append(("Content-Security-Policy", _POLICY.format(more_styles)))
    answer.headers.append(("Referrer-Policy", "no-referrer"))
    return answer
