"""A prediction over HTTP in TorchServe's shapes: reads the request, asks, makes the answer.

Both HTTP doors use it: the router, and Flask under any other WSGI server.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from batching.errors import BadRequest, InternalError, NoWorker, ServeError, VersionNotFound
from batching.models.spec import ModelSpec
from batching.protocol import Reply, Request
from batching.store.background_tasks import BackgroundTasks
from batching.store.pending_request import ClientLeft, ReplyStream
from ingress.http1.exchange import Body, Content, Header
from ingress.jobs.job_door import JobDoor
from ingress.jobs.preferences import Preferences, preferences_of
from ingress.predictions.prediction_service import Prediction, PredictionService
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

# Sends the one answer: status, headers, body.
Respond = Callable[[int, list[Header], Body], None]


class HttpPredictions:
    """Holds what all predictions over HTTP share. Lives on the service's event loop."""

    def __init__(
        self,
        service: PredictionService,
        *,
        is_open_inference: bool,
        max_response_size_bytes: int,
        jobs: JobDoor,
        max_form_parts: int,
        large_form_bytes: int = LARGE_FORM_BYTES,
    ) -> None:
        self.service = service
        self.jobs = jobs
        self.is_open_inference = is_open_inference
        self.max_response_size_bytes = max_response_size_bytes
        self.max_form_parts = max_form_parts
        self.large_form_bytes = large_form_bytes
        self.background = BackgroundTasks()
        # Whether clients may be told why a model could not be loaded, in its handler's words.
        self.tells_errors = False


class HttpPrediction(Prediction):
    """One prediction, from its whole request to its one answer.

    Args:
        shared: what all have in common.
        target: what the path names.
        headers: names in lower case; owned by this prediction.
        query: the query string, which only counts where `target` takes one.
        respond: sends the one answer; errors are answers too.
    """

    _is_tensors = False

    def __init__(
        self,
        shared: HttpPredictions,
        target: Target,
        headers: dict[str, str],
        query: str,
        respond: Respond,
    ) -> None:
        super().__init__(shared.service)
        self.shared = shared
        self._target = target
        self._headers = headers
        self._query = query
        self._respond = respond

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

    def begin(self, body: Content) -> None:
        """Submits the request, at once if nothing has to be waited for.

        Args:
            body: whole and within `max_request_size`.
        """
        shared, target, headers = self.shared, self._target, self._headers
        try:
            self._is_tensors = target.is_v2 and (
                shared.is_open_inference or speaks_of_binary(headers, body)
            )
            is_long_form = len(body) > shared.large_form_bytes and is_form(
                headers.get("content-type", "")
            )
            spec = self.service.known(target.model_name, target.model_version)
            if spec is None or target.takes_query or is_long_form:
                self.continue_with(self._begin_slowly(body, is_long_form=is_long_form))
            else:
                self._arrive(spec)
                self._send(self._read(target, body))
        except ServeError as error:
            self._refuse(error)
        except Exception as error:
            self._fall(error)

    async def _begin_slowly(self, body: Content, *, is_long_form: bool) -> None:
        read = partial(self._read, self._target, body)
        del body
        request = None
        if self._target.takes_query:
            request = await asyncio.to_thread(read) if is_long_form else read()
            self._target = await self._named(request)
        name, version = self._target.model_name, self._target.model_version
        self._arrive(self.service.known(name, version) or await self.service.resolve(name, version))
        if request is None or (self.spec is not None and self.spec.decodes_itself):
            request = await asyncio.to_thread(read) if is_long_form else read()
        del read
        self._send(request)

    def _send(self, request: Request) -> None:
        assert self.spec is not None
        async_after_s = self.spec.async_after_s
        if not async_after_s and "prefer" not in self._headers:
            self.service.submit(self, request)
            return
        preferences = preferences_of(self._headers, async_after_s)
        if preferences.is_async:
            self.continue_with(self._send_job(request, preferences))
        else:
            self.service.submit(self, request)

    async def _send_job(self, request: Request, preferences: Preferences) -> None:
        assert self.spec is not None
        taking = self.shared.jobs.take(
            self.spec,
            request,
            self._headers,
            preferences,
            timeout_s=self.timeout_s or None,
            base_url=self.base_url(),
            is_open_inference=self._is_tensors,
        )
        del request
        try:
            answer = await taking
        except VersionNotFound as error:
            raise await self.service.why_unknown(self.spec, error) from error
        if not self.is_over:
            self.is_over = True
            self.service.end(self, answer.status, None, "")
            self._respond(*answer)

    async def _answering_faults(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except ServeError as error:
            self._refuse(error)
        except Exception as error:
            self._fall(error)

    def _arrive(self, spec: ModelSpec) -> None:
        self.service.arrive(self, spec, self._target.model_version)
        self.timeout_s = read_timeout_s(self._headers) or 0.0

    def _read(self, target: Target, body: Content) -> Request:
        request = self._parsed(target, body)
        sent = self.sent_headers()
        for name in OWN_HEADERS:
            if name in request.headers:
                sent[name] = request.headers[name]
        return Request(sent, request.parts)

    def _parsed(self, target: Target, body: Content) -> Request:
        most = self.shared.max_form_parts
        if self.spec is not None and self.spec.decodes_itself:
            if not target.is_v2:
                return read_undecoded(target, self._headers, body, self._query, most)
            self._is_tensors = True
        if self._is_tensors:
            return read_tensors(target, self._headers, body)
        query = self._query if target.takes_query else ""
        return read_request(target, self._headers, body, query, most)

    async def _named(self, request: Request) -> Target:
        """Returns the target with its model's name, from wherever TorchServe takes it.

        Raises:
            BadRequest: the request names no model.
        """
        if self._target.model_name:
            return self._target
        name = first_in_query(self._query, "model_name", self.shared.max_form_parts)
        name = name or await self.service.only_startup_model()
        if not name:
            parts = {part.name: part.content for part in request.parts}
            name = bytes(parts.get("model_name", b"")).decode("utf-8", "replace")
        if not name:
            raise BadRequest("Parameter model_name is required.")
        return self._target._replace(model_name=name)

    # --- the outcome

    def on_reply(self, reply: Reply | ReplyStream) -> None:
        """Answers with the worker's reply."""
        if not isinstance(reply, Reply):
            assert isinstance(reply, ReplyStream)
            self.continue_with(self._stream(reply))
            return
        try:
            answer = reply_answer(reply, self.request_id)
            self.service.end(self, answer.status, reply.timing, reply.reason)
            if self._is_tensors and reply.error_type:
                answer = with_error_key(answer)
            self._respond(*answer)
        except Exception as error:
            self._fall(error)

    def on_error(self, error: Exception) -> None:
        """Answers with the reason."""
        if isinstance(error, VersionNotFound):
            self.continue_with(self._explain(error))
        elif isinstance(error, ServeError):
            self._refuse(error)
        else:
            assert isinstance(error, ClientLeft)
            self._respond(CLIENT_CLOSED_REQUEST, [], b"")

    def _refuse(self, error: ServeError) -> None:
        if not isinstance(error, NoWorker):
            self._answer_error(error)
        elif self.spec is None:
            error.message = _no_worker_text(self._target)
            self._answer_error(error)
        else:
            self.continue_with(self._refuse_without_worker(error, self.spec))

    async def _refuse_without_worker(self, error: NoWorker, spec: ModelSpec) -> None:
        version, why = self._target.model_version, await self.service.why_no_worker(spec)
        if spec.load_error or (why and self.shared.tells_errors):
            error.message = _failed_text(self._target, why)
        elif why:
            error.message = _failed_text(self._target, "The management API has the error")
        else:
            error.message = _no_worker_text(self._target)
        if not spec.load_error:
            error.message += f". {how_to_get_a_worker(spec, version, has_failed=bool(why))}"
        if spec.min_worker == 0:
            error.retry_after_s = None  # nobody has asked for one
        self._answer_error(error)

    def _answer_error(self, error: ServeError) -> None:
        answer = error_answer(error, self.request_id)
        self.service.end(self, answer.status, None, error.reason)
        self._respond(*(with_error_key(answer) if self._is_tensors else answer))

    def _fall(self, error: Exception) -> None:
        """Answers although this program has a fault; the log says which."""
        text = "prediction failed model=%r request=%s"
        log.error(text, self._target.model_name, self.request_id, exc_info=error)
        self._respond(*error_answer(InternalError("Internal server error."), self.request_id))

    async def _explain(self, error: VersionNotFound) -> None:
        spec = self.spec
        assert isinstance(spec, ModelSpec)
        raise await self.service.why_unknown(spec, error)

    async def _stream(self, stream: ReplyStream) -> None:
        try:
            status, headers = stream_head(await stream.first(), self.request_id)
        except BaseException:
            await stream.close()
            raise
        count = partial(self.service.end, self)
        answer = StreamedAnswer(status, headers, stream, count)
        try:
            await self.send_stream(answer)
        except ServeError as error:
            self._respond(*error_answer(error))


def _no_worker(target: Target) -> str:
    # Word for word, unbalanced quote included: TorchServe 0.12.
    version = "" if target.model_version is None else f' Version {target.model_version}"'
    return f'Model "{target.model_name}"{version} has no worker to serve inference request'


def _failed_text(target: Target, why: str) -> str:
    return f"{_no_worker(target)}: it could not be loaded. {why.rstrip('.')}"


def _no_worker_text(target: Target) -> str:
    return (
        f"{_no_worker(target)}. Please use scale workers API to add workers. If this is a sequence "
        "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
    )
