"""`/token` on the management port: a new key for whoever has the API key.

Source: TorchServe 0.12 `TokenAuthorization`.
"""

import logging

from flask import Blueprint, Response, request

from batching.errors import InternalError
from batching.request_ids import fresh_request_id
from ingress.access.authorizer import TOKEN_PATH, refused_renewal, require_api_key
from ingress.access.key_file import RENEWABLE, KeyFile
from ingress.http1.exchange import Answer
from ingress.rest.responses import ANY_METHOD, to_response
from ingress.torchserve.answers import JSON_CONTENT_TYPE, NO_CACHE_HEADERS

log = logging.getLogger(__name__)


def token_blueprint(keys: KeyFile) -> Blueprint:
    """`/token?type=inference` and `/token?type=management`."""
    blueprint = Blueprint("token", __name__)

    @blueprint.route(TOKEN_PATH, methods=ANY_METHOD)
    def renew() -> Response:
        require_api_key(keys, request.headers.get("Authorization", ""))
        kind = request.args.get("type", "")
        scope = next((scope for scope in RENEWABLE if scope == kind), None)
        if scope is None:
            raise refused_renewal()
        try:
            keys.renew(scope)
        except (OSError, ValueError) as error:
            log.exception("renewing a key failed")
            raise InternalError("The key file cannot be written.") from error
        headers = [("x-request-id", fresh_request_id()), JSON_CONTENT_TYPE, *NO_CACHE_HEADERS]
        # The new key is in the file only, as in TorchServe: whoever asks must be able to read that.
        return to_response(Answer(200, headers, b"\n"))

    return blueprint
