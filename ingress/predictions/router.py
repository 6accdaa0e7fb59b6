"""Answers predictions by calls on the event loop, and passes everything else on to Flask.

A thread for each waiting request costs most, and a task for each a good part (docs/adr/0006, 0021).
"""

import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from batching.errors import ServeError
from ingress.access.authorizer import Authorizer
from ingress.health import LIVE_TEXT
from ingress.http1.body_reader import (
    BODY_TIMEOUT_S,
    plain_length_bytes,
    read_body,
    received_body,
)
from ingress.http1.exchange import Answer, Application, Exchange
from ingress.predictions.http_prediction import HttpPrediction, HttpPredictions
from ingress.predictions.streamed_answer import StreamedAnswer, send_answer
from ingress.torchserve.answers import error_answer, status_answer
from ingress.torchserve.prediction_paths import parse_prediction_path
from ingress.torchserve.routes import LIVE_PATH, Target

log = logging.getLogger(__name__)

Going = Coroutine[Any, Any, None]


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

    def __call__(self, exchange: Exchange) -> Going | None:
        """Answers the request, if not by a call later: a prediction is one."""
        target = parse_prediction_path(exchange.path)
        if target is not None and exchange.method != "OPTIONS":
            self._predict(target, exchange)
            return None
        if exchange.path == LIVE_PATH:
            # Not through Flask: its threads may all wait for Redis.
            exchange.respond(*status_answer(LIVE_TEXT))
            return None
        return self._others(exchange)

    def _predict(self, target: Target, exchange: Exchange) -> None:
        headers = dict(exchange.headers)
        try:
            self._authorizer.admit(exchange.method, exchange.path, headers.get("authorization", ""))
        except ServeError as error:
            exchange.respond(*error_answer(error))
            return
        if self._authorizer.is_closed:
            # Neither Redis nor a handler needs the key.
            headers.pop("authorization", None)
        send = partial(self._send, exchange)
        prediction = HttpPrediction(self._predictions, target, headers, exchange.query, send)
        exchange.on_left = prediction.leave
        length_bytes = plain_length_bytes(headers, self._max_request_size_bytes)
        if length_bytes is None:
            self._predictions.background.start(self._read_other_body(prediction, exchange, headers))
        elif exchange.is_received:
            prediction.begin(exchange.received())
        else:
            then = partial(_begin_late, prediction, exchange)
            exchange.when_received(then, length_bytes, BODY_TIMEOUT_S)

    async def _read_other_body(
        self, prediction: HttpPrediction, exchange: Exchange, headers: dict[str, str]
    ) -> None:
        limit_bytes = self._max_request_size_bytes
        try:
            # Without a name here, which would keep the body while its client waits.
            prediction.begin(await read_body(exchange, headers, limit_bytes))
        except ServeError as error:
            exchange.respond(*error_answer(error))

    def _send(self, exchange: Exchange, answer: Answer | StreamedAnswer) -> Going | None:
        if isinstance(answer, StreamedAnswer):
            return send_answer(answer, exchange, self._max_response_size_bytes)
        exchange.respond(*answer)
        return None


def _begin_late(prediction: HttpPrediction, exchange: Exchange) -> None:
    try:
        prediction.begin(received_body(exchange))
    except ServeError as error:
        exchange.respond(*error_answer(error))
