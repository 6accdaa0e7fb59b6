"""Builds the Flask application of one listener, complete under any WSGI server."""

import logging
import re
from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from wsgiref.types import StartResponse, WSGIEnvironment

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from batching.errors import (
    BadRequest,
    InternalError,
    PayloadTooLarge,
    ServeError,
    StoreUnavailable,
)
from ingress.access.tokens import Authorizer
from ingress.http1.exchange import HttpAnswer, refuse_encoded
from ingress.predictions.prediction_service import LOWEST_STATUS
from ingress.rest.inference_api import InferenceView
from ingress.rest.management_api import ManagementView
from ingress.rest.metrics_api import MetricsView
from ingress.rest.page_api import PageView
from ingress.rest.wsgi_bridge import PlainResponse, flask_exchange
from ingress.role import Role, has_page
from ingress.services import Services
from ingress.torchserve.answers import (
    error_answer,
    json_answer,
    not_found,
    with_error_key,
    wrong_method,
)
from ingress.torchserve.openapi import api_document
from ingress.torchserve.routes import ANY, ROUTES, Route

log = logging.getLogger(__name__)

_ANY_METHOD = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD")
_HARMLESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Where TorchServe looks at the path alone.
_PREDICTIONS = ("/predictions/", "/v1/models/", "/v2/models/")
# The verb of outages of Redis.
_VERB = "manage"


class CrossOrigin(ServeError, status=403, type="IllegalArgumentException", reason="cross_origin"):
    """Refuses a web page that would change models."""


class _App(Flask):
    response_class = PlainResponse

    def __init__(self, services: Services, roles: Collection[Role], *, is_private: bool) -> None:
        super().__init__(__name__, static_folder=None)
        self._services = services
        self._roles = roles
        self._is_private = is_private
        self._authorizer = Authorizer(services.keys, roles)
        self._aliases = services.settings.aliases() if Role.INFERENCE in roles else {}
        self._routes: dict[str, Route] = {}
        self.config["MAX_CONTENT_LENGTH"] = services.settings.max_request_size_bytes
        self.config["PROPAGATE_EXCEPTIONS"] = False
        self.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
        # TorchServe splits paths at each slash and never redirects.
        self.url_map.merge_slashes = False
        self.url_map.strict_slashes = True
        self.after_request(self._note)
        self.register_error_handler(Exception, self._answer_error)
        self.before_request(self._admit)
        views = self._views()
        if Role.INFERENCE in roles:
            # Before any rule: predictions under both servers share one parser of these paths.
            self.before_request(views["inference"].predict)
        self.before_request(self._refuse_web_pages)
        for route in ROUTES:
            view, _, method_name = route.view.partition(".")
            endpoint = f"{route.method} {route.path}"
            # Of two rows of one path, the first counts.
            if view in views and route.port_on(roles) and endpoint not in self._routes:
                rule = re.sub(r"{(\w+)}", r"<\1>", route.path.replace("{tail}", "<path:tail>"))
                methods = _ANY_METHOD if route.method == ANY else (route.method,)
                function = getattr(views[view], method_name)
                self.add_url_rule(rule, endpoint, function, methods=methods)
                self._routes[endpoint] = route

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # `/models/M/` means `/models/M`, and an alias its route.
        path = environ.get("PATH_INFO", "").rstrip("/")
        environ["PATH_INFO"] = self._aliases.get(path, path) or "/"
        return super().wsgi_app(environ, start_response)

    def make_response(self, rv: Any) -> Response:
        if isinstance(rv, HttpAnswer):
            return PlainResponse(bytes(rv.body), status=rv.status, headers=rv.headers)
        return super().make_response(rv)

    def _views(self) -> dict[str, Any]:
        """Returns the views that roles, settings and keys ask for: name -> view."""
        services, roles = self._services, self._roles
        document = api_document(roles)
        views: dict[str, Any] = {
            "shared": SimpleNamespace(
                describe_api=lambda: json_answer(document),
                answer_job=lambda **_: services.on_loop(
                    services.http_predictions.answer_job(flask_exchange())
                ),
            )
        }
        if Role.INFERENCE in roles:
            views["inference"] = views["open_inference"] = InferenceView(services)
            if has_page(services.settings):
                views["page"] = PageView(services, document)
        if Role.MANAGEMENT in roles:
            views["management"] = ManagementView(services)
            if services.keys is not None:
                views["token"] = views["management"]
        if Role.METRICS in roles:
            views["metrics"] = MetricsView(services)
        return views

    def _admit(self) -> None:
        authorization = request.headers.get("Authorization", "")
        self._authorizer.admit(request.method, request.path, authorization)
        refuse_encoded(request.headers.get("Content-Encoding", ""))

    def _refuse_web_pages(self) -> None:
        """Refuses requests of web pages that would change what only operators may."""
        # Loopback needs no token, but any page in a browser on this machine can post to it (and,
        # with a name that resolves to 127.0.0.1, look like this server's own). Registering a model
        # runs its code. Browsers send `Origin`; curl, SDKs and our own commands do not. An origin
        # that the operator allows by name is trusted; `*` names no page.
        known_origins = {None, self._services.settings.cors_allowed_origin}
        is_harmless = request.method in _HARMLESS_METHODS or not self._is_management()
        if not is_harmless and request.headers.get("Origin") not in known_origins:
            raise CrossOrigin("Web pages may not change models or files.")

    def _is_management(self) -> bool:
        route = self._routes.get(request.endpoint or "")
        return route is not None and route.port_on(self._roles) is Role.MANAGEMENT

    def _note(self, response: Response) -> Response:
        """Logs failed requests, and that Redis answers the management API again."""
        # A probe's answer may be an old one, so it does not end an outage.
        status, reason = response.status_code, response.headers.get("x-ferry-reason")
        if status < BadRequest.status and self._is_management():
            self._services.outage.over(_VERB)
        # Predictions are noted where they are answered.
        if reason and status >= LOWEST_STATUS and "is_prediction" not in g:
            asked = {"method": request.method, "path": quote(request.path)}
            failure = response.headers["x-request-id"], status, reason, asked
            note = self._services.predictor.failed.note
            self._services.loop.call_soon_threadsafe(note, *failure)
        return response

    def _answer_error(self, error: Exception) -> Response:
        if isinstance(error, ServeError):
            refusal = error
        elif isinstance(error, HTTPException):
            is_prediction = Role.INFERENCE in self._roles and request.path.startswith(_PREDICTIONS)
            refusals: dict[int | None, ServeError] = {
                400: BadRequest("Invalid HTTP message."),
                405: not_found() if is_prediction else wrong_method(),
                413: PayloadTooLarge(""),
            }
            # Everything else is not found, even Flask's redirects: TorchServe has none.
            refusal = refusals.get(error.code, not_found())
        else:
            log.error("request failed", exc_info=error)
            refusal = InternalError("Internal server error.")
        if isinstance(refusal, StoreUnavailable):
            self._services.outage.note(_VERB, refusal)
        elif self._is_private and refusal.operators_text:
            refusal.message += f"\n{refusal.operators_text}"
        answer = error_answer(refusal)
        route = self._routes.get(request.endpoint or "")
        is_open_inference = route is not None and route.view.startswith("open_inference.")
        return self.make_response(with_error_key(answer) if is_open_inference else answer)


def create_app(services: Services, roles: Collection[Role], *, is_private: bool = False) -> Flask:
    """Returns the application that serves these roles on one address.

    `is_private`: only this machine's users can connect to it. They are operators, who may see what
    their handlers raised.
    """
    return _App(services, roles, is_private=is_private)
