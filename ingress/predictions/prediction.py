"""A prediction over HTTP in TorchServe's shapes: reads the request, asks, makes the answer."""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from batching.errors import BadRequest, InternalError, NoWorker, ServeError, VersionNotFound
from batching.models.spec import ModelSpec
from batching.protocol import BatchTiming, Reply, Request, fresh_request_id
from batching.settings.settings import Settings
from batching.settings.values import TrustedProxies
from batching.store.background_tasks import BackgroundTasks
from batching.store.pending_request import ClientLeft, PendingRequest, ReplyStream
from ingress.http1.exchange import Answer, Body, Content, Header
from ingress.jobs.job_answers import JobAnswers
from ingress.jobs.job_service import Preferences, preferences_of
from ingress.metrics.ingress_metrics import VersionMetrics
from ingress.predictions.prediction_service import LOWEST_STATUS, PredictionService
from ingress.predictions.streamed_answer import CLIENT_CLOSED_REQUEST, StreamedAnswer
from ingress.torchserve.answers import (
    error_answer,
    how_to_get_a_worker,
    reply_answer,
    stream_head,
    with_error_key,
)
from ingress.torchserve.payload import (
    OWN_HEADERS,
    first_in_query,
    is_form,
    read_request,
    read_tensors,
    read_timeout_s,
    read_undecoded,
    speaks_of_binary,
)
from ingress.torchserve.routes import Target

log = logging.getLogger(__name__)

# A form larger than this is parsed in a thread: 6 MB of percent signs take half a second.
LARGE_FORM_BYTES = 256 * 1024

_SCALE_UP = (
    ". Please use scale workers API to add workers. If this is a sequence inference, please check "
    "if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)


class HttpPredictions:
    """Holds what all predictions over HTTP share. Lives on the service's event loop."""

    def __init__(
        self,
        service: PredictionService,
        jobs: JobAnswers,
        settings: Settings,
        large_form_bytes: int = LARGE_FORM_BYTES,
    ) -> None:
        self.service = service
        self.jobs = jobs
        self.settings = settings
        self.proxies = TrustedProxies.of(settings.trusted_proxies)
        self.large_form_bytes = large_form_bytes
        self.background = BackgroundTasks()
        # Whether clients may be told why a model could not be loaded, in its handler's words.
        self.tells_errors = False


class Prediction(PendingRequest):
    """One prediction, from its whole request to its one answer.

    `respond` sends the answer; errors are answers too. `spec` and `metrics` are None until its
    version is found. `headers`, with names in lower case, belong to it.
    """

    spec: ModelSpec | None = None
    metrics: VersionMetrics | None = None
    respond: Callable[[int, list[Header], Body], None]
    _is_tensors = False

    def __init__(
        self, shared: HttpPredictions, target: Target, headers: dict[str, str], query: str
    ) -> None:
        super().__init__(fresh_request_id())
        self.started_s = time.perf_counter()
        self.shared = shared
        self._target = target
        self._headers = headers
        self._query = query

    @abstractmethod
    def base_url(self) -> str:
        """Returns the URL of the server as this client sees it, without a slash at the end."""

    def sent_headers(self) -> dict[str, str]:
        """Returns the headers for the handler, as the client spelled them where that is known."""
        return self._headers

    @abstractmethod
    async def send_stream(self, answer: StreamedAnswer) -> None:
        """Sends an answer in pieces, and closes it.

        Raises:
            ServeError: nothing was sent.
        """

    def continue_with(self, step: Coroutine[Any, Any, None]) -> None:
        """Goes on with what has to wait for something; a fault in it is answered, too."""
        self.shared.background.start(self._answering_faults(step))

    def submit(self, body: Content) -> None:
        """Submits the request with this whole body, at once if nothing has to be waited for."""
        shared, target, headers = self.shared, self._target, self._headers
        try:
            self._is_tensors = target.is_v2 and (
                shared.settings.open_inference_rows or speaks_of_binary(headers, body)
            )
            is_long_form = len(body) > shared.large_form_bytes and is_form(
                headers.get("content-type", "")
            )
            spec = shared.service.known(target.model_name, target.model_version)
            if spec is None or target.takes_query or is_long_form:
                self.continue_with(self._submit_when_read(body, is_long_form=is_long_form))
            else:
                self._accept(spec)
                self._send(spec, self._read(body))
        except ServeError as error:
            self._refuse(error)
        except Exception as error:
            self._answer_fault(error)

    async def _submit_when_read(self, body: Content, *, is_long_form: bool) -> None:
        read, service = partial(self._read, body), self.shared.service
        del body
        request = None
        if self._target.takes_query:
            request = await asyncio.to_thread(read) if is_long_form else read()
            if not self._target.model_name:
                self._target = self._target._replace(model_name=await self._model_name(request))
        name, version = self._target.model_name, self._target.model_version
        spec = service.known(name, version) or await service.resolve(name, version)
        self._accept(spec)
        if request is None or spec.decodes_itself:
            request = await asyncio.to_thread(read) if is_long_form else read()
        del read
        self._send(spec, request)

    def _accept(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.metrics = self.shared.service.metrics.version(spec.key, self._target.model_version)
        self.metrics.totals.count_arrival()
        self.timeout_s = read_timeout_s(self._headers) or 0.0

    def _send(self, spec: ModelSpec, request: Request) -> None:
        if spec.async_after_s or "prefer" in self._headers:
            preferences = preferences_of(self._headers, spec.async_after_s)
            if preferences.is_async:
                self.continue_with(self._send_job(spec, request, preferences))
                return
        if not self.is_over:
            self.wire = request.to_wire()
            self.shared.service.broker.submit(spec, self)

    async def _send_job(self, spec: ModelSpec, request: Request, preferences: Preferences) -> None:
        submitting = self.shared.jobs.take(
            spec,
            request,
            self._headers,
            preferences,
            timeout_s=self.timeout_s or None,
            base_url=self.base_url(),
            is_open_inference=self._is_tensors,
        )
        del request
        try:
            answer = await submitting
        except VersionNotFound as error:
            raise await self.shared.service.why_unknown(spec, error) from error
        if not self.is_over:
            self.is_over = True
            self.count(answer.status)
            self.respond(*answer)

    async def _answering_faults(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except ServeError as error:
            self._refuse(error)
        except Exception as error:
            self._answer_fault(error)

    def _read(self, body: Content) -> Request:
        target, headers = self._target, self._headers
        most_parts = self.shared.settings.max_form_parts
        decodes_itself = self.spec is not None and self.spec.decodes_itself
        self._is_tensors = self._is_tensors or (decodes_itself and target.is_v2)
        if self._is_tensors:
            request = read_tensors(target, headers, body)
        elif decodes_itself:
            request = read_undecoded(target, headers, body, self._query, most_parts)
        else:
            query = self._query if target.takes_query else ""
            request = read_request(target, headers, body, query, most_parts)
        sent = self.sent_headers()
        for name in OWN_HEADERS:
            if name in request.headers:
                sent[name] = request.headers[name]
        return Request(sent, request.parts)

    async def _model_name(self, request: Request) -> str:
        """Returns the model's name, from wherever TorchServe takes it.

        Raises:
            BadRequest: the request names no model.
        """
        name = first_in_query(self._query, "model_name", self.shared.settings.max_form_parts)
        name = name or await self.shared.service.only_startup_model()
        if not name:
            parts = {part.name: part.content for part in request.parts}
            name = bytes(parts.get("model_name", b"")).decode("utf-8", "replace")
        if not name:
            raise BadRequest("Parameter model_name is required.")
        return name

    # --- the outcome

    def on_reply(self, reply: Reply | ReplyStream) -> None:
        """Answers with the worker's reply."""
        if not isinstance(reply, Reply):
            self.continue_with(self._stream(reply))
            return
        try:
            answer = reply_answer(reply, self.request_id)
            self.count(answer.status, reply.timing, reply.reason)
            if self._is_tensors and reply.error_type:
                answer = with_error_key(answer)
            self.respond(*answer)
        except Exception as error:
            self._answer_fault(error)

    def on_error(self, error: Exception) -> None:
        """Answers with the reason."""
        if isinstance(error, VersionNotFound) and self.spec is not None:
            self.continue_with(self._explain(self.spec, error))
        elif isinstance(error, ServeError):
            self._refuse(error)
        else:
            assert isinstance(error, ClientLeft)
            self.respond(CLIENT_CLOSED_REQUEST, [], b"")

    def count(self, status: int, timing: BatchTiming | None = None, reason: str = "") -> None:
        """Counts the answer, and logs a failure; `reason` is the word for what went wrong."""
        spec, service = self.spec, self.shared.service
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

    def _refuse(self, error: ServeError) -> None:
        if not isinstance(error, NoWorker):
            self._answer_error(error)
        elif self.spec is None:
            error.message = _no_worker(self._target)
            self._answer_error(error)
        else:
            self.continue_with(self._refuse_without_worker(error, self.spec))

    async def _refuse_without_worker(self, error: NoWorker, spec: ModelSpec) -> None:
        why = await self.shared.service.why_no_worker(spec)
        is_told = bool(spec.load_error) or self.shared.tells_errors
        error.message = _no_worker(self._target)
        if why:
            reason = why.rstrip(".") if is_told else "The management API has the error"
            error.message = _no_worker(self._target, f": it could not be loaded. {reason}")
        if not spec.load_error:
            version = self._target.model_version
            error.message += f". {how_to_get_a_worker(spec, version, has_failed=bool(why))}"
        if spec.min_worker == 0:
            error.retry_after_s = None  # nobody has asked for one
        self._answer_error(error)

    def _answer_error(self, error: ServeError) -> None:
        answer = error_answer(error, self.request_id)
        self.count(answer.status, None, error.reason)
        self.respond(*(with_error_key(answer) if self._is_tensors else answer))

    def _answer_fault(self, error: Exception) -> None:
        """Answers although this program has a fault; the log says which."""
        line = "prediction failed model=%r request=%s"
        log.error(line, self._target.model_name, self.request_id, exc_info=error)
        self.respond(*error_answer(InternalError("Internal server error."), self.request_id))

    async def _explain(self, spec: ModelSpec, error: VersionNotFound) -> None:
        raise await self.shared.service.why_unknown(spec, error)

    async def _stream(self, stream: ReplyStream) -> None:
        try:
            status, headers = stream_head(await stream.first(), self.request_id)
        except BaseException:
            await stream.close()
            raise
        try:
            await self.send_stream(StreamedAnswer(status, headers, stream, self.count))
        except ServeError as error:
            self.respond(*error_answer(error))


class AwaitedPrediction(Prediction):
    """A prediction whose door waits for the answer and sends it: under other WSGI servers."""

    def __init__(
        self,
        shared: HttpPredictions,
        target: Target,
        headers: dict[str, str],
        query: str = "",
        base_url: str = "",
    ) -> None:
        super().__init__(shared, target, headers, query)
        self._base_url = base_url
        self._answered: asyncio.Future[Answer | StreamedAnswer]
        self._answered = asyncio.get_running_loop().create_future()
        self.respond = self._keep

    async def answer(self, body: Content) -> Answer | StreamedAnswer:
        """Returns the one answer, to a request with this body."""
        self.submit(body)
        del body
        try:
            return await self._answered
        except asyncio.CancelledError:
            self.leave()
            raise

    def base_url(self) -> str:
        return self._base_url

    def _keep(self, status: int, headers: list[Header], body: Body) -> None:
        if not self._answered.done():
            self._answered.set_result(Answer(status, headers, body))

    async def send_stream(self, answer: StreamedAnswer) -> None:
        self._answered.set_result(answer)


def _no_worker(target: Target, more: str = _SCALE_UP) -> str:
    # Word for word, unbalanced quote included: TorchServe 0.12.
    version = "" if target.model_version is None else f' Version {target.model_version}"'
    return f'Model "{target.model_name}"{version} has no worker to serve inference request{more}'
