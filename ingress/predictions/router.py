"""Answers predictions by calls on the event loop, and passes everything else on to Flask.

A thread for each waiting request costs most, and a task for each a good part (docs/adr/0006, 0023).
"""

from collections.abc import Coroutine
from typing import Any

from batching.errors import ServeError
from batching.settings.settings import Settings
from ingress.access.authorizer import Authorizer
from ingress.health import LIVE_TEXT
from ingress.http1.body_reader import plain_length_bytes, read_body, received_body
from ingress.http1.exchange import Answer, Application, Exchange
from ingress.http1.peer import host_of
from ingress.jobs.job_door import JOB_PATH
from ingress.predictions.http_prediction import HttpPrediction, HttpPredictions
from ingress.predictions.streamed_answer import StreamedAnswer, send_answer
from ingress.torchserve.answers import error_answer, status_answer
from ingress.torchserve.routes import LIVE_PATH, parse_prediction_path

Going = Coroutine[Any, Any, None]


class _RoutedPrediction(HttpPrediction):
    """The prediction of an exchange."""

    exchange: Exchange

    def base_url(self) -> str:
        return _base_url(self.shared, self.exchange)

    def sent_headers(self) -> dict[str, str]:
        return dict(self.exchange.headers)

    async def send_stream(self, answer: StreamedAnswer) -> None:
        await send_answer(answer, self.exchange, self.shared.max_response_size_bytes)

    def begin_late(self) -> None:
        """Begins when the rest of the body has come, or will not come."""
        try:
            self.begin(received_body(self.exchange))
        except ServeError as error:
            self.exchange.respond(*error_answer(error))

    async def begin_carefully(self, limit_bytes: int, timeout_s: float) -> None:
        """Begins with a body in chunks, or one that may have to be refused."""
        exchange = self.exchange
        try:
            # Without a name here, which would keep the body while its client waits.
            self.begin(await read_body(exchange, exchange.fields, limit_bytes, timeout_s))
        except ServeError as error:
            exchange.respond(*error_answer(error))


class InferenceRouter:
    """The application of the inference port."""

    def __init__(
        self,
        predictions: HttpPredictions,
        others: Application,
        *,
        settings: Settings,
        authorizer: Authorizer,
    ) -> None:
        self._predictions = predictions
        self._others = others
        self._max_request_size_bytes = settings.max_request_size_bytes
        self._body_timeout_s = settings.body_timeout_s
        self._authorizer = authorizer
        self._asks_for_tokens = authorizer.is_closed

    def __call__(self, exchange: Exchange) -> Going | None:
        """Answers the request, if not by a call later: a prediction is one."""
        target = parse_prediction_path(exchange.path)
        if target is None or exchange.method == "OPTIONS":
            return self._answer_other(exchange)
        headers = exchange.fields
        if self._asks_for_tokens and not self._is_admitted(exchange, headers):
            return None
        prediction = _RoutedPrediction(
            self._predictions, target, headers, exchange.query, exchange.respond
        )
        prediction.exchange = exchange
        exchange.on_left = prediction.leave
        limit_bytes = self._max_request_size_bytes
        length_bytes = plain_length_bytes(headers, limit_bytes)
        if length_bytes is None:
            prediction.continue_with(prediction.begin_carefully(limit_bytes, self._body_timeout_s))
        elif exchange.is_received:
            prediction.begin(exchange.received())
        else:
            exchange.when_received(prediction.begin_late, length_bytes, self._body_timeout_s)
        return None

    def _answer_job(self, exchange: Exchange) -> Going | None:
        # Not through Flask, whose threads would wait with the clients.
        headers = exchange.fields
        if self._asks_for_tokens and not self._is_admitted(exchange, headers):
            return None

        async def answer() -> None:
            jobs, shared = self._predictions.jobs, self._predictions
            asked = exchange.method, exchange.path, headers, _base_url(shared, exchange)
            found = await jobs.answer(*asked)
            if isinstance(found, Answer):
                exchange.respond(*found)
            else:
                await send_answer(found, exchange, shared.max_response_size_bytes)

        return answer()

    def _is_admitted(self, exchange: Exchange, headers: dict[str, str]) -> bool:
        try:
            # Neither Redis nor a handler needs the key.
            authorization = headers.pop("authorization", "")
            exchange.headers = [
                header for header in exchange.headers if header[0].lower() != "authorization"
            ]
            self._authorizer.admit(exchange.method, exchange.path, authorization)
        except ServeError as error:
            exchange.respond(*error_answer(error))
            return False
        return True

    def _answer_other(self, exchange: Exchange) -> Going | None:
        if exchange.path.startswith("/jobs/") and JOB_PATH.fullmatch(exchange.path):
            return self._answer_job(exchange)
        if exchange.path != LIVE_PATH:
            return self._others(exchange)
        # Not through Flask: its threads may all wait for Redis.
        exchange.respond(*status_answer(LIVE_TEXT))
        return None


def _base_url(shared: HttpPredictions, exchange: Exchange) -> str:
    fields, peer = exchange.fields, host_of(exchange.client)
    return shared.jobs.base_urls.of(fields, scheme=exchange.scheme, peer=peer)
