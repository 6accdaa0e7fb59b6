"""Predictions over HTTP in TorchServe's shapes: reads the request, asks, makes the answer.

Both HTTP doors use it: the router, and Flask under any other WSGI server.
"""

import asyncio
from functools import partial

from batching.errors import BadRequest, NoWorker, ServeError
from batching.protocol import Request
from batching.store.ingress_side.pending_request import ClientGone
from batching.store.ingress_side.reply_stream import ReplyStream
from ingress.http1.exchange import Answer
from ingress.predictions.prediction_service import Prediction, PredictionService
from ingress.predictions.streamed_answer import StreamedAnswer
from ingress.torchserve.answers import error_answer, reply_answer, stream_head, with_error_key
from ingress.torchserve.payload import (
    first_in_query,
    is_form,
    read_request,
    read_tensors,
    read_timeout_s,
    speaks_of_binary,
)
from ingress.torchserve.routes import Target

# A form larger than this is parsed in a thread: 6 MB of percent signs take half a second.
LARGE_FORM_BYTES = 256 * 1024


class HttpPredictions:
    """Turns a path, headers and a body into an answer. Lives on the service's event loop."""

    def __init__(
        self,
        service: PredictionService,
        *,
        is_open_inference: bool,
        large_form_bytes: int = LARGE_FORM_BYTES,
    ) -> None:
        self._service = service
        self._is_open_inference = is_open_inference
        self._large_form_bytes = large_form_bytes

    async def answer(
        self,
        target: Target,
        headers: dict[str, str],
        body: bytes,
        client_left: ClientGone | None = None,
        query: str = "",
    ) -> Answer | StreamedAnswer:
        """Returns the one answer to this prediction; errors are answers too.

        Args:
            target: what the path names.
            headers: names in lower case; owned by this call.
            body: whole and within `max_request_size`.
            client_left: finishes when the client no longer waits.
            query: the query string, which only counts where `target` takes one.

        Raises:
            ClientLeft: the client no longer waits.
        """
        service, prediction = self._service, Prediction()
        is_tensors = target.is_v2 and (self._is_open_inference or speaks_of_binary(headers, body))
        request = None
        try:
            if target.takes_query:
                request = await self._read(target, headers, body, query)
                target = await self._named(target, request, query)
            name, version = target.model_name, target.model_version
            spec = service.known(name, version) or await service.resolve(name, version)
            service.arrive(prediction, spec, version)
            timeout_s = read_timeout_s(headers)
            if is_tensors:
                request = read_tensors(target, headers, body)
            elif request is None:
                request = await self._read(target, headers, body)
            asking = service.ask(prediction, request, timeout_s=timeout_s, client_left=client_left)
            # While its client waits, a request's body is held once, and not in each form.
            request, body = None, b""
            reply = await asking
            if isinstance(reply, ReplyStream):
                return await self._streamed(reply, prediction)
            answer, is_error = reply_answer(reply, prediction.request_id), bool(reply.error_type)
            service.end(prediction, answer.status, reply.timing, reply.reason)
        except ServeError as error:
            if isinstance(error, NoWorker):
                error.message = _no_worker_text(target)
            answer, is_error = error_answer(error, prediction.request_id), True
            service.end(prediction, answer.status, None, error.reason)
        return with_error_key(answer) if is_tensors and is_error else answer

    async def _read(
        self, target: Target, headers: dict[str, str], body: bytes, query: str = ""
    ) -> Request:
        is_large = len(body) > self._large_form_bytes
        if is_large and is_form(headers.get("content-type", "")):
            return await asyncio.to_thread(read_request, target, headers, body, query)
        return read_request(target, headers, body, query)

    async def _named(self, target: Target, request: Request, query: str) -> Target:
        """Returns the target with its model's name, from wherever TorchServe takes it.

        Raises:
            BadRequest: the request names no model.
        """
        if target.model_name:
            return target
        name = first_in_query(query, "model_name") or await self._service.only_startup_model()
        if not name:
            parts = {part.name: part.content for part in request.parts}
            name = parts.get("model_name", b"").decode("utf-8", "replace")
        if not name:
            raise BadRequest("Parameter model_name is required.")
        return target._replace(model_name=name)

    async def _streamed(self, stream: ReplyStream, prediction: Prediction) -> StreamedAnswer:
        try:
            status, headers = stream_head(await stream.first(), prediction.request_id)
        except BaseException:
            await stream.close()
            raise
        return StreamedAnswer(status, headers, stream, partial(self._service.end, prediction))


def _no_worker_text(target: Target) -> str:
    # Word for word, unbalanced quote included: TorchServe 0.12.
    version = "" if target.model_version is None else f' Version {target.model_version}"'
    return (
        f'Model "{target.model_name}"{version} has no worker to serve inference request. '
        "Please use scale workers API to add workers. If this is a sequence inference, please "
        "check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
    )
