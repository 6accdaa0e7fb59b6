"""`/token` on the management port gives a new key to a client that has the API key.

Source: TorchServe 0.12 `TokenAuthorization`.
"""

import logging

from flask import Blueprint, Response, request

from batching.errors import InternalError
from ingress.access.authorizer import refused_renewal, require_api_key
from ingress.access.key_file import RENEWABLE, KeyFile
from ingress.rest.responses import to_response
from ingress.rest.rules import add_routes
from ingress.torchserve.answers import JSON_CONTENT_TYPE, typed_answer
from ingress.torchserve.routes import TOKEN

log = logging.getLogger(__name__)


def token_blueprint(keys: KeyFile) -> Blueprint:
    """Returns the route that renews the keys in this file."""
    blueprint = Blueprint("token", __name__)
    add_routes(blueprint, _TokenView(keys), TOKEN)
    return blueprint


class _TokenView:
    def __init__(self, keys: KeyFile) -> None:
        self._keys = keys

    def renew(self) -> Response:
        require_api_key(self._keys, request.headers.get("Authorization", ""))
        kind = request.args.get("type", "")
        scope = next((scope for scope in RENEWABLE if scope == kind), None)
        if scope is None:
            raise refused_renewal()
        try:
            self._keys.renew(scope)
        except (OSError, ValueError) as error:
            log.exception("renewing a key failed")
            # Without the file's path, which is no matter of clients.
            why = getattr(error, "strerror", None) or error
            raise InternalError(f"The key file cannot be written: {why}.") from error
        # As in TorchServe, only the file has the new key: the client must be able to read it.
        return to_response(typed_answer(b"\n", JSON_CONTENT_TYPE))
