"""Turns every exception that leaves a Flask route into an answer."""

import logging
from urllib.parse import quote

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from batching.errors import (
    BadRequest,
    InternalError,
    MethodNotAllowed,
    PayloadTooLarge,
    ServeError,
    StoreUnavailable,
)
from ingress.predictions.prediction_service import LOWEST_STATUS, FailedRequests
from ingress.rest.responses import to_response
from ingress.role import Role
from ingress.services import Services
from ingress.torchserve.answers import error_answer, not_found, wrong_method

log = logging.getLogger(__name__)

_VERB = "manage"


def install_error_handlers(app: Flask, services: Services, *, is_private: bool) -> None:
    """Makes this application answer errors in TorchServe's shape, without internals.

    Operators of this machine, for whom an `is_private` listener is, see what their handlers raised.
    Notes in the log of outages when Redis fails, and when the management API is answered again.
    """
    outage, failed = services.outage, FailedRequests()

    def answer(error: ServeError) -> Response:
        if is_private and error.operators_text:
            error.message += f"\n{error.operators_text}"
        return _answer(error)

    def answer_unavailable(error: StoreUnavailable) -> Response:
        outage.note(_VERB, error)
        return _answer(error)

    @app.after_request
    def note(response: Response) -> Response:
        # A probe's answer may be an old one, so it does not end an outage.
        if request.blueprint == Role.MANAGEMENT and response.status_code < BadRequest.status:
            outage.over(_VERB)
        # Predictions are noted where they are answered, and a probe's answer is no failure.
        reason = response.headers.get("x-ferry-reason")
        status, is_prediction = response.status_code, request.blueprint == Role.INFERENCE
        if reason and status >= LOWEST_STATUS and not is_prediction:
            asked = {"method": request.method, "path": quote(request.path)}
            request_id = response.headers["x-request-id"]
            services.loop.call_soon_threadsafe(failed.note, request_id, status, reason, asked)
        return response

    app.register_error_handler(ServeError, answer)
    app.register_error_handler(StoreUnavailable, answer_unavailable)
    app.register_error_handler(HTTPException, _answer_http)
    app.register_error_handler(Exception, _answer_unforeseen)


def _answer(error: ServeError) -> Response:
    return to_response(error_answer(error))


def _answer_http(error: HTTPException) -> Response:
    if error.code == MethodNotAllowed.status:
        return _answer(wrong_method())
    if error.code == PayloadTooLarge.status:
        return _answer(PayloadTooLarge(""))
    if error.code == BadRequest.status:
        return _answer(BadRequest("Invalid HTTP message."))
    # This includes Flask's redirects: TorchServe has none.
    return _answer(not_found())


def _answer_unforeseen(error: Exception) -> Response:
    log.error("request failed", exc_info=error)
    return _answer(InternalError("Internal server error."))
