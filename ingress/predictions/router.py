"""Answers predictions on the event loop, and passes everything else on to Flask.

A thread for each waiting request costs most (docs/adr/0006); here a waiting prediction is a future.
"""

import logging
from collections.abc import Awaitable

from batching.errors import InternalError, ServeError
from batching.request_ids import fresh_request_id
from batching.store.ingress_side.pending_request import ClientLeft
from ingress.access.authorizer import Authorizer
from ingress.health import LIVE_TEXT
from ingress.http1.body_reader import read_body
from ingress.http1.exchange import Answer, Application, Exchange
from ingress.predictions.http_predictions import HttpPredictions
from ingress.predictions.streamed_answer import (
    CLIENT_CLOSED_REQUEST,
    StreamedAnswer,
    send_answer,
)
from ingress.torchserve.answers import error_answer, status_answer
from ingress.torchserve.prediction_paths import parse_prediction_path
from ingress.torchserve.routes import LIVE_PATH, Target

log = logging.getLogger(__name__)


class InferenceRouter:
    """The application of the inference port."""

    def __init__(
        self,
        predictions: HttpPredictions,
        others: Application,
        *,
        max_request_size_bytes: int,
        max_response_size_bytes: int,
        authorizer: Authorizer,
    ) -> None:
        self._predictions = predictions
        self._others = others
        self._max_request_size_bytes = max_request_size_bytes
        self._max_response_size_bytes = max_response_size_bytes
        self._authorizer = authorizer

    def __call__(self, exchange: Exchange) -> Awaitable[None]:
        """Answers the request."""
        target = parse_prediction_path(exchange.path)
        if target is not None and exchange.method != "OPTIONS":
            return self._predict(target, exchange)
        if exchange.path == LIVE_PATH:
            return _say_live(exchange)
        return self._others(exchange)

    async def _predict(self, target: Target, exchange: Exchange) -> None:
        headers = dict(exchange.headers)
        try:
            self._authorizer.admit(exchange.method, exchange.path, headers.get("authorization", ""))
            if self._authorizer.is_closed:
                # Neither Redis nor a handler needs the key.
                headers.pop("authorization", None)
            answer = await self._predictions.answer(
                target,
                headers,
                # Without a name here, which would keep the body while its client waits.
                await read_body(exchange, headers, self._max_request_size_bytes),
                exchange.client_left,
                exchange.query,
            )
            if isinstance(answer, StreamedAnswer):
                await send_answer(answer, exchange, self._max_response_size_bytes)
                return
        except ServeError as error:
            answer = error_answer(error)
        except ClientLeft:
            answer = Answer(CLIENT_CLOSED_REQUEST, [], b"")
        except Exception:  # the outermost frame that can name the model
            request_id = fresh_request_id()
            log.exception("prediction failed model=%r request=%s", target.model_name, request_id)
            answer = error_answer(InternalError("Internal server error."), request_id)
        exchange.respond(*answer)


async def _say_live(exchange: Exchange) -> None:
    # Not through Flask: its threads may all wait for Redis.
    exchange.respond(*status_answer(LIVE_TEXT))
