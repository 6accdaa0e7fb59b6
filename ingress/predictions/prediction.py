"""Answers predictions by calls on the event loop, and passes everything else on to Flask.

A thread for each waiting request costs most, and a task for each a good part (docs/adr/0006, 0023).
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

from batching.errors import BadRequest, InternalError, NoWorker, ServeError, VersionNotFound
from batching.models.spec import ModelSpec
from batching.protocol import BatchTiming, Reply, Request, fresh_request_id
from batching.settings.settings import Settings
from batching.settings.values import TrustedProxies
from batching.store.pending_request import ClientLeft, PendingRequest, ReplyStream
from ingress.access.tokens import Authorizer
from ingress.http1.exchange import (
    Application,
    ConnectionEnded,
    Content,
    Exchange,
    Header,
    HttpAnswer,
)
from ingress.http1.heads import WITHOUT_BODY
from ingress.jobs.job_service import JOB_PATH, JobService, Preferences, preferences_of
from ingress.metrics.ingress_metrics import VersionMetrics
from ingress.predictions.prediction_service import LOWEST_STATUS, PredictionService
from ingress.torchserve.answers import (
    error_answer,
    how_to_get_a_worker,
    reply_answer,
    status_answer,
    stream_head,
    with_error_key,
)
from ingress.torchserve.payload import (
    OWN_HEADERS,
    TENSOR_HEADER,
    first_in_query,
    is_form,
    read_request,
    read_timeout_s,
)
from ingress.torchserve.routes import LIVE_PATH, LIVE_TEXT, PredictionTarget, parse_prediction_path

log = logging.getLogger(__name__)

# A form larger than this is parsed in a thread: 6 MB of percent signs take half a second.
LARGE_FORM_BYTES = 256 * 1024

# As nginx logs it; no client receives it.
CLIENT_CLOSED_REQUEST = 499

_SCALE_UP = (
    ". Please use scale workers API to add workers. If this is a sequence inference, please check "
    "if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)


class HttpPredictions:
    """Holds what all predictions over HTTP share, whichever door they come by."""

    def __init__(self, service: PredictionService, jobs: JobService, settings: Settings) -> None:
        self.service = service
        self.jobs = jobs
        self.settings = settings
        self._proxies = TrustedProxies.of(settings.trusted_proxies)

    def base_url(self, exchange: Exchange) -> str:
        """Returns the URL of the server as this client sees it, without a slash at the end."""
        peer = exchange.connection.client.rpartition(":")[0].strip("[]")
        scheme = exchange.connection.scheme
        return self._proxies.base_url(exchange.fields, scheme=scheme, peer=peer)

    async def answer_job(self, exchange: Exchange) -> HttpAnswer:
        url = self.base_url(exchange)
        return await self.jobs.answer(exchange.method, exchange.path, exchange.fields, url)


class Prediction(PendingRequest):
    """One prediction, from its whole request to its one answer; errors are answers, too.

    `spec` and `metrics` are None until its version is found.
    """

    spec: ModelSpec | None = None
    metrics: VersionMetrics | None = None
    _is_tensors = False

    def __init__(
        self, shared: HttpPredictions, target: PredictionTarget, exchange: Exchange
    ) -> None:
        super().__init__(fresh_request_id())
        self.started_s = time.perf_counter()
        self.exchange = exchange
        self._shared = shared
        self._target = target

    def make_room(self, size_bytes: int) -> memoryview | None:
        """Returns where to receive the body, if it is large and not taken apart."""
        if self._target.is_v2 or is_form(self.exchange.fields.get("content-type", "")):
            return None
        return self._shared.service.broker.memory.arena.room(size_bytes)

    def submit_received(self) -> None:
        """Submits the request when its body has come, or refuses it when it will not come."""
        try:
            # Without a name here, which would keep the body while its client waits.
            # A body in shared memory is not taken apart, and encoded as bytes are.
            self.submit(self.exchange.received())  # type: ignore[arg-type]
        except ServeError as error:
            self.exchange.respond(*error_answer(error))

    def continue_with(self, step: Coroutine[Any, Any, None]) -> None:
        """Goes on with what has to wait for something; an error in it is answered, too."""

        async def answering_errors() -> None:
            try:
                await step
            except Exception as error:
                self._refuse(error)

        self._shared.service.background.start(answering_errors())

    def submit(self, body: Content) -> None:
        """Submits the request with this whole body, at once if nothing has to be waited for."""
        shared, target, headers = self._shared, self._target, self.exchange.fields
        try:
            # TorchServe gives the JSON of other requests to the handler unchanged.
            self._is_tensors = target.is_v2 and (
                shared.settings.open_inference_rows
                or TENSOR_HEADER in headers
                or b'"binary_data' in body
            )
            is_long_form = len(body) > LARGE_FORM_BYTES and is_form(headers.get("content-type", ""))
            spec = shared.service.known(target.model_name, target.model_version)
            if spec is None or target.takes_query or is_long_form:
                self.continue_with(self._submit_later(body, is_long_form=is_long_form))
            else:
                self._accept(spec)
                self._send(spec, self._read(body))
        except Exception as error:
            self._refuse(error)

    async def _submit_later(self, body: Content, *, is_long_form: bool) -> None:
        async def read() -> Request:
            return await asyncio.to_thread(self._read, body) if is_long_form else self._read(body)

        request, service = None, self._shared.service
        if self._target.takes_query:
            request = await read()
            if not self._target.model_name:
                # Wherever TorchServe takes it from.
                most_parts = self._shared.settings.max_form_parts
                name = first_in_query(self.exchange.query, "model_name", most_parts)
                name = name or await service.only_startup_model()
                if not name:
                    named = [part.content for part in request.parts if part.name == "model_name"]
                    name = bytes(named[0] if named else b"").decode("utf-8", "replace")
                if not name:
                    raise BadRequest("Parameter model_name is required.")
                self._target = self._target._replace(model_name=name)
        name, version = self._target.model_name, self._target.model_version
        spec = service.known(name, version) or await service.resolve(name, version)
        self._accept(spec)
        if request is None or spec.decodes_itself:
            request = await read()
        self._send(spec, request)

    def _accept(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.metrics = self._shared.service.metrics.version(spec.key, self._target.model_version)
        self.metrics.count_arrival()
        self.timeout_s = read_timeout_s(self.exchange.fields)

    def _send(self, spec: ModelSpec, request: Request) -> None:
        if spec.async_after_s or "prefer" in self.exchange.fields:
            preferences = preferences_of(self.exchange.fields, spec.async_after_s)
            if preferences.is_async:
                self.continue_with(self._send_job(spec, request, preferences))
                return
        if not self.is_over:
            self.wire = request.to_wire()
            self._shared.service.broker.submit(spec, self)

    async def _send_job(self, spec: ModelSpec, request: Request, preferences: Preferences) -> None:
        submitting = self._shared.jobs.take(
            spec,
            request,
            self.exchange.fields,
            preferences,
            timeout_s=self.timeout_s or None,
            base_url=self._shared.base_url(self.exchange),
            is_open_inference=self._is_tensors,
        )
        del request  # while its client waits
        try:
            answer = await submitting
        except VersionNotFound as error:
            await self._explain(spec, error)
        else:
            if not self.is_over:
                self.is_over = True
                self.count(answer.status)
                self.exchange.respond(*answer)

    def _read(self, body: Content) -> Request:
        exchange, settings = self.exchange, self._shared.settings
        sent = dict(exchange.headers)  # as the client spelled them
        decodes_itself = self.spec is not None and self.spec.decodes_itself
        self._is_tensors = self._is_tensors or (decodes_itself and self._target.is_v2)
        request = read_request(
            self._target,
            exchange.fields,
            body,
            exchange.query,
            settings.max_form_parts,
            decodes_itself=decodes_itself,
            is_tensors=self._is_tensors,
        )
        for name in OWN_HEADERS:
            if name in request.headers:
                sent[name] = request.headers[name]
        return Request(sent, request.parts)

    # --- the outcome

    def on_reply(self, reply: Reply | ReplyStream) -> None:
        if not isinstance(reply, Reply):
            self.continue_with(self._stream(reply))
            return
        try:
            answer = reply_answer(reply, self.request_id)
            self.count(answer.status, reply.timing, reply.reason)
            if self._is_tensors and reply.error_type:
                answer = with_error_key(answer)
            self.exchange.respond(*answer)
        except Exception as error:
            self._refuse(error)

    def on_error(self, error: Exception) -> None:
        if isinstance(error, ClientLeft):
            self.exchange.respond(CLIENT_CLOSED_REQUEST, [], b"")
        elif isinstance(error, VersionNotFound) and self.spec is not None:
            self.continue_with(self._explain(self.spec, error))
        else:
            self._refuse(error)

    def count(self, status: int, timing: BatchTiming | None = None, reason: str = "") -> None:
        """Counts the answer, and logs a failure; `reason` is the word for what went wrong."""
        spec, service = self.spec, self._shared.service
        if status >= LOWEST_STATUS:
            name, version = spec.key if spec else ("unknown", "unknown")
            asked = {"model": name, "version": version}
            service.failed.note(self.request_id, status, reason, asked)
        if spec is None or self.metrics is None:
            service.metrics.count_unknown(status, reason)
            return
        seconds = time.perf_counter() - self.started_s
        full_size = spec.batch_size
        self.metrics.count_answer(status, seconds, timing, reason=reason, full_size=full_size)

    def _refuse(self, error: Exception) -> None:
        """Answers with this error, although this program may have a fault; the log says which."""
        if isinstance(error, NoWorker):
            self.continue_with(self._refuse_without_worker(error))
        elif isinstance(error, ServeError):
            self._answer_error(error)
        else:
            line = "prediction failed model=%r request=%s"
            log.error(line, self._target.model_name, self.request_id, exc_info=error)
            internal = InternalError("Internal server error.")
            self.exchange.respond(*error_answer(internal, self.request_id))

    async def _refuse_without_worker(self, error: NoWorker) -> None:
        spec, version, reason = self.spec, self._target.model_version, _SCALE_UP
        if spec is not None:
            why = await self._shared.service.why_no_worker(spec)
            if why:
                is_told = bool(spec.load_error) or self._shared.service.tells_errors
                why = why.rstrip(".") if is_told else "The management API has the error"
                reason = f": it could not be loaded. {why}"
            if not spec.load_error:
                reason += f". {how_to_get_a_worker(spec, version, has_failed=bool(why))}"
            if spec.min_worker == 0:
                error.retry_after_s = None  # nobody has asked for one
        # Word for word, unbalanced quote included: TorchServe 0.12.
        asked = f'Model "{self._target.model_name}"'
        asked += "" if version is None else f' Version {version}"'
        error.message = f"{asked} has no worker to serve inference request{reason}"
        self._answer_error(error)

    def _answer_error(self, error: ServeError) -> None:
        answer = error_answer(error, self.request_id)
        self.count(answer.status, None, error.reason)
        self.exchange.respond(*(with_error_key(answer) if self._is_tensors else answer))

    async def _explain(self, spec: ModelSpec, error: VersionNotFound) -> None:
        self._refuse(await self._shared.service.why_unknown(spec, error))

    # --- an answer in pieces

    async def _stream(self, stream: ReplyStream) -> None:
        """Sends the pieces no faster than the client reads; HTTP/1.0 gets one answer of all."""
        exchange = self.exchange
        try:
            status, headers = stream_head(await stream.first(), self.request_id)
        except BaseException:
            await stream.close()
            raise
        if exchange.method == "HEAD" or status in WITHOUT_BODY:
            self.count(status)
            exchange.respond(status, headers, b"")
            await stream.close()
            return
        async with aclosing(self._pieces(status, stream)) as pieces:
            await anext(pieces)
            if exchange.http_version < "1.1":
                await self._send_at_once(status, headers, pieces)
                return
            try:
                await exchange.respond_in_pieces(status, headers, pieces)
            except ServeError as error:
                log.warning("stream broken off: %s", error.message)
            except ConnectionEnded:
                pass  # the client has left, or does not read

    async def _send_at_once(
        self, status: int, headers: list[Header], pieces: AsyncIterator[bytes]
    ) -> None:
        body = bytearray()
        try:
            async for piece in pieces:
                body += piece
                if len(body) > self._shared.settings.max_response_size_bytes:
                    raise InternalError("The answer is too large for this connection.")
        except ServeError as error:
            self.exchange.respond(*error_answer(error))
        else:
            self.exchange.respond(status, headers, bytes(body))

    async def _pieces(self, status: int, stream: ReplyStream) -> AsyncGenerator[bytes]:
        """Yields the pieces; counts the answer, and tells a handler that still runs to stop."""
        outcome, reason = CLIENT_CLOSED_REQUEST, "client_left"
        try:
            yield b""  # begun, or closing it would not run the end
            async for piece in stream:
                if piece:
                    yield piece
            outcome, reason = status, ""
        except ServeError as error:
            outcome, reason = error.status, error.reason
            raise
        finally:
            self.count(outcome, stream.timing, reason)
            await stream.close()


class InferenceRouter:
    """Answers what comes to the inference port; `others` answers what is no prediction."""

    def __init__(
        self, shared: HttpPredictions, others: Application, authorizer: Authorizer
    ) -> None:
        self._shared = shared
        self._others = others
        self._aliases = shared.settings.aliases()
        self._limits = shared.settings.max_request_size_bytes, shared.settings.body_timeout_s
        self._authorizer = authorizer

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answers the request, if not by a call later: a prediction is one."""
        if self._aliases:
            exchange.path = self._aliases.get(exchange.path.rstrip("/"), exchange.path)
        target = parse_prediction_path(exchange.path)
        if target is None or exchange.method == "OPTIONS":
            return self._pass_on(exchange)
        if self._authorizer.is_closed and not self._is_admitted(exchange):
            return None
        prediction = Prediction(self._shared, target, exchange)
        exchange.on_left = prediction.leave
        exchange.when_received(prediction.submit_received, *self._limits, prediction.make_room)
        return None

    def _pass_on(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
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
        exchange.respond(*await self._shared.answer_job(exchange))

    def _is_admitted(self, exchange: Exchange) -> bool:
        # Neither Redis nor a handler needs the key.
        authorization = exchange.fields.pop("authorization", "")
        exchange.headers = [pair for pair in exchange.headers if pair[0].lower() != "authorization"]
        try:
            self._authorizer.admit(exchange.method, exchange.path, authorization)
        except ServeError as error:
            exchange.respond(*error_answer(error))
            return False
        return True
