"""Answers predictions by calls on the event loop, and passes everything else on to Flask.

A thread for each waiting request costs most, and a task for each a good part (docs/adr/0006, 0023).
"""

from collections.abc import Coroutine
from typing import Any

from batching.errors import ServeError
from ingress.access.authorizer import Authorizer
from ingress.health import LIVE_TEXT
from ingress.http1.exchange import Application, Exchange
from ingress.jobs.job_answers import JOB_PATH
from ingress.predictions.prediction import HttpPredictions, Prediction
from ingress.predictions.streamed_answer import StreamedAnswer, send_answer
from ingress.torchserve.answers import error_answer, status_answer
from ingress.torchserve.routes import LIVE_PATH, Target, parse_prediction_path


class RoutedPrediction(Prediction):
    """The prediction of an exchange."""

    def __init__(self, shared: HttpPredictions, target: Target, exchange: Exchange) -> None:
        super().__init__(shared, target, exchange.fields, exchange.query)
        self.exchange = exchange
        self.respond = exchange.respond

    def base_url(self) -> str:
        return _base_url(self.shared, self.exchange)

    def sent_headers(self) -> dict[str, str]:
        return dict(self.exchange.headers)

    async def send_stream(self, answer: StreamedAnswer) -> None:
        await send_answer(answer, self.exchange, self.shared.settings.max_response_size_bytes)

    def submit_received(self) -> None:
        """Submits the request when its body has come, or refuses it when it will not come."""
        try:
            self.submit(self.exchange.received())
        except ServeError as error:
            self.respond(*error_answer(error))

    async def submit_read(self, limit_bytes: int, timeout_s: float) -> None:
        """Submits a request whose body comes in chunks, or may have to be refused."""
        try:
            # Without a name here, which would keep the body while its client waits.
            self.submit(await self.exchange.read_body(limit_bytes, timeout_s))
        except ServeError as error:
            self.respond(*error_answer(error))


class InferenceRouter:
    """Answers what comes to the inference port; `others` answers what is no prediction."""

    def __init__(
        self, predictions: HttpPredictions, others: Application, authorizer: Authorizer
    ) -> None:
        self._predictions = predictions
        self._others = others
        self._aliases = predictions.settings.aliases()
        self._limit_bytes = predictions.settings.max_request_size_bytes
        self._timeout_s = predictions.settings.body_timeout_s
        self._authorizer = authorizer

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answers the request, if not by a call later: a prediction is one."""
        if self._aliases:
            exchange.path = self._aliases.get(exchange.path.rstrip("/"), exchange.path)
        target = parse_prediction_path(exchange.path)
        if target is None or exchange.method == "OPTIONS":
            return self._answer_other(exchange)
        if self._authorizer.is_closed and not self._is_admitted(exchange):
            return None
        prediction = RoutedPrediction(self._predictions, target, exchange)
        exchange.on_left = prediction.leave
        limits = self._limit_bytes, self._timeout_s
        if not exchange.when_received(prediction.submit_received, *limits):
            prediction.continue_with(prediction.submit_read(*limits))
        return None

    def _answer_other(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        if exchange.path == LIVE_PATH:
            # Not through Flask: its threads may all wait for Redis. Nor may they wait with clients
            # of jobs.
            exchange.respond(*status_answer(LIVE_TEXT))
        elif not exchange.path.startswith("/jobs/") or not JOB_PATH.fullmatch(exchange.path):
            return self._others(exchange)
        elif not self._authorizer.is_closed or self._is_admitted(exchange):
            return self._answer_job(exchange)
        return None

    async def _answer_job(self, exchange: Exchange) -> None:
        shared, fields = self._predictions, exchange.fields
        url = _base_url(shared, exchange)
        exchange.respond(*await shared.jobs.answer(exchange.method, exchange.path, fields, url))

    def _is_admitted(self, exchange: Exchange) -> bool:
        try:
            # Neither Redis nor a handler needs the key.
            authorization = exchange.fields.pop("authorization", "")
            exchange.headers = [
                header for header in exchange.headers if header[0].lower() != "authorization"
            ]
            self._authorizer.admit(exchange.method, exchange.path, authorization)
        except ServeError as error:
            exchange.respond(*error_answer(error))
            return False
        return True


def _base_url(shared: HttpPredictions, exchange: Exchange) -> str:
    client_host = exchange.connection.client.rpartition(":")[0].strip("[]")
    scheme = exchange.connection.scheme
    return shared.proxies.base_url(exchange.fields, scheme=scheme, peer=client_host)
