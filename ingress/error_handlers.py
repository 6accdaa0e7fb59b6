"""Every exception that leaves a Flask route becomes one answer."""

import logging

from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from batching.errors import (
    BadRequest,
    InternalError,
    MethodNotAllowed,
    PayloadTooLarge,
    ServeError,
)
from batching.request_ids import fresh_request_id
from ingress.answers import error_answer, not_found, wrong_method
from ingress.responses import to_response

log = logging.getLogger(__name__)


def install_error_handlers(app: Flask) -> None:
    """Errors of this application are answered in TorchServe's shape; none leaks internals."""
    app.register_error_handler(ServeError, _answer)
    app.register_error_handler(HTTPException, _answer_http)
    app.register_error_handler(Exception, _answer_unforeseen)


def _answer(error: ServeError) -> Response:
    return to_response(error_answer(error, fresh_request_id()))


def _answer_http(error: HTTPException) -> Response:
    return _answer(_translated(error.code or 500))


def _translated(status: int) -> ServeError:
    if status == MethodNotAllowed.status:
        return wrong_method()
    if status == PayloadTooLarge.status:
        return PayloadTooLarge("")
    if status == BadRequest.status:
        return BadRequest("Invalid HTTP message.")
    # Redirects of the router included: TorchServe has none.
    return not_found()


def _answer_unforeseen(error: Exception) -> Response:
    log.error("request failed", exc_info=error)
    return _answer(InternalError("Internal server error."))
