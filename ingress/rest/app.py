"""Builds the Flask application of one listener, complete under any WSGI server."""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask, request

from ingress.access.authorizer import Authorizer
from ingress.http1.exchange import refuse_encoded
from ingress.page.page_switch import has_page
from ingress.rest.error_handlers import install_error_handlers
from ingress.rest.inference_api import inference_blueprint
from ingress.rest.management_api import management_blueprint
from ingress.rest.metrics_api import metrics_blueprint
from ingress.rest.open_inference_api import open_inference_blueprint
from ingress.rest.page_api import page_blueprint
from ingress.rest.responses import PlainResponse, json_response
from ingress.rest.rules import add_routes
from ingress.rest.token_api import token_blueprint
from ingress.role import Role
from ingress.services import Services
from ingress.torchserve.openapi import api_document
from ingress.torchserve.routes import EVERYWHERE

_BLUEPRINTS: dict[Role, Callable[[Services], Any]] = {
    Role.INFERENCE: inference_blueprint,
    Role.MANAGEMENT: management_blueprint,
    Role.METRICS: metrics_blueprint,
}


def create_app(services: Services, roles: Collection[Role], *, is_private: bool = False) -> Flask:
    """Returns the application that serves these roles on one address.

    Args:
        services: what it answers with.
        roles: of the address.
        is_private: only this machine's own users can connect to it.
    """
    app = Flask(__name__, static_folder=None)
    app.response_class = PlainResponse
    app.config["MAX_CONTENT_LENGTH"] = services.settings.max_request_size_bytes
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    # TorchServe splits paths at each slash and never redirects.
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = True
    authorizer = Authorizer(services.keys, roles)

    @app.before_request
    def admit() -> None:
        authorizer.admit(request.method, request.path, request.headers.get("Authorization", ""))
        refuse_encoded(request.headers.get("Content-Encoding", ""))

    document = api_document(roles)
    description = SimpleNamespace(describe_api=lambda: json_response(document))
    add_routes(app, description, EVERYWHERE)
    for role in Role:
        if role in roles:
            app.register_blueprint(_BLUEPRINTS[role](services))
    if Role.INFERENCE in roles:
        app.register_blueprint(open_inference_blueprint(services))
        if has_page(services.settings):
            app.register_blueprint(page_blueprint(services, document))
    if services.keys is not None and Role.MANAGEMENT in roles:
        app.register_blueprint(token_blueprint(services.keys))
    install_error_handlers(app, services, is_private=is_private)
    aliases = services.settings.aliases() if Role.INFERENCE in roles else {}
    app.wsgi_app = _PlainPaths(app.wsgi_app, aliases)  # type: ignore[method-assign]
    return app


class _PlainPaths:
    """Makes `/models/M/` mean `/models/M`, as Flask alone does not, and an alias its route."""

    def __init__(self, app: WSGIApplication, aliases: Mapping[str, str]) -> None:
        self._app = app
        self._aliases = aliases

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "").rstrip("/")
        environ["PATH_INFO"] = self._aliases.get(path, path) or "/"
        return self._app(environ, start_response)
