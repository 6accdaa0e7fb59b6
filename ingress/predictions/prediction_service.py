"""Answers a prediction: resolve, read, submit, wait, write. Both doors call it."""

import asyncio
import time

from batching.errors import BadRequest, NoWorker, PredictionFailed, ServeError, VersionNotFound
from batching.models.entry import check_names
from batching.models.spec import ModelSpec, VersionKey
from batching.protocol import BatchTiming, Reply, Request
from batching.request_ids import fresh_request_id
from batching.store.ingress_side.broker import Broker
from batching.store.ingress_side.pending_request import ClientGone
from batching.store.ingress_side.reply_stream import ReplyStream
from batching.store.registry.catalog import Catalog
from ingress.http1.exchange import Answer
from ingress.metrics.ingress_metrics import Metrics, VersionMetrics
from ingress.predictions.failed_requests import FailedRequests
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
from ingress.torchserve.prediction_paths import Target

# A form larger than this is parsed in a thread: 6 MB of percent signs take half a second.
_LARGE_FORM_BYTES = 256 * 1024


class PredictionService:
    """Turns (path, headers, body) into an Answer. Lives on the broker's event loop."""

    def __init__(
        self,
        catalog: Catalog,
        broker: Broker,
        metrics: Metrics,
        *,
        is_open_inference: bool = False,
    ) -> None:
        self._catalog = catalog
        self._broker = broker
        self._metrics = metrics
        self._is_open_inference = is_open_inference
        self._failed = FailedRequests()

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
            client_left: finishes when nobody waits for the answer any more.
            query: the query string, where `target` takes one.

        Raises:
            ClientLeft: there is nobody to answer.
        """
        request_id = fresh_request_id()
        measure = _Measure(self._metrics, self._failed, request_id)
        is_tensors = target.is_v2 and (self._is_open_inference or speaks_of_binary(headers, body))
        request, spec = None, None
        try:
            if target.takes_query:
                request = await _read(target, headers, body, query)
                target = await self._named(target, request, query)
            spec = self._catalog.known(target.model_name, target.model_version)
            if spec is None:
                spec = await self.resolve(target.model_name, target.model_version)
            measure.begin(spec, target.model_version)
            timeout_s = read_timeout_s(headers)
            if is_tensors:
                request = read_tensors(target, headers, body)
            elif request is None:
                request = await _read(target, headers, body)
            wire = request.encode()
            # Whoever waits holds a body once, and not each form of it.
            request, body = None, b""
            reply = await self._broker.predict(
                spec,
                wire,
                request_id=request_id,
                timeout_s=timeout_s,
                client_left=client_left,
            )
            if isinstance(reply, ReplyStream):
                return await _streamed(reply, request_id, measure)
            answer, is_error = reply_answer(reply, request_id), bool(reply.error_type)
            measure.end(answer.status, reply.timing, reply.reason)
        except ServeError as error:
            told = await self._told(error, target, spec)
            answer, is_error = error_answer(told, request_id), True
            measure.end(answer.status, None, told.reason)
        return with_error_key(answer) if is_tensors and is_error else answer

    async def resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        """Returns the version that these words from a path mean.

        Raises:
            ModelNotFound, VersionNotFound: unknown, or no name that a model could have.
            StoreUnavailable: not known here, and Redis does not answer.
        """
        check_names(model_name, model_version)
        return await self._catalog.resolve(model_name, model_version)

    async def _told(self, error: ServeError, target: Target, spec: ModelSpec | None) -> ServeError:
        """Returns what the client is told of this error, met with that version."""
        if spec is not None and isinstance(error, VersionNotFound):
            error = await self._why_refused(spec)
        if isinstance(error, NoWorker):
            error.message = _no_worker_text(target)
        return error

    async def _why_refused(self, spec: ModelSpec) -> ServeError:
        """Why no queue is there for a version that was known."""
        self._catalog.forget(spec.model_name)
        try:
            await self.resolve(*spec.key)
        except ServeError as error:
            return error
        # All nodes are of another release, or none was there when a cluster's server was emptied.
        return NoWorker("", retry_after_s=1.0)

    async def _named(self, target: Target, request: Request, query: str) -> Target:
        """Returns the target with its model's name, from wherever TorchServe takes it.

        Raises:
            BadRequest: nobody says which.
        """
        if target.model_name:
            return target
        name = first_in_query(query, "model_name")
        if not name:
            startup_models = await self._catalog.startup_models()
            name = startup_models[0] if len(startup_models) == 1 else ""
        if not name:
            parts = {part.name: part.content for part in request.parts}
            name = parts.get("model_name", b"").decode("utf-8", "replace")
        if not name:
            raise BadRequest("Parameter model_name is required.")
        return target._replace(model_name=name)

    async def describe(self, spec: ModelSpec) -> Reply:
        """Returns what a worker's handler says of itself.

        Source: TorchServe 0.12 describe job, a batch row without parts, with the header `describe`.

        Raises:
            ServeError: no worker, or no answer.
        """
        request = Request({"describe": "True"}, [])
        reply = await self._broker.predict(spec, request.encode(), request_id=fresh_request_id())
        if isinstance(reply, ReplyStream):
            await reply.close()
            raise PredictionFailed("Invalid model predict output")
        return reply

    def forget(self, model_name: str) -> None:
        """Makes the next prediction of this model ask the registry."""
        self._catalog.forget(model_name)


class _Measure:
    """What one prediction adds to the metrics, and to the log if it fails."""

    __slots__ = (
        "_children",
        "_failed",
        "_full_size",
        "_key",
        "_metrics",
        "_request_id",
        "_started_s",
    )

    def __init__(self, metrics: Metrics, failed: FailedRequests, request_id: str) -> None:
        self._metrics = metrics
        self._failed = failed
        self._request_id = request_id
        self._key: VersionKey | None = None
        self._started_s = time.perf_counter()
        self._children: VersionMetrics | None = None
        self._full_size = 1

    def begin(self, spec: ModelSpec, asked_version: str | None) -> None:
        """Counts the request for this version."""
        self._key = spec.key
        self._children = self._metrics.version(spec.key, asked_version)
        self._full_size = spec.batch_size
        self._children.count_arrival()

    def end(self, status: int, timing: BatchTiming | None, reason: str) -> None:
        """It was answered, or its client has gone."""
        self._failed.note(self._request_id, self._key, status, reason)
        if self._children is None:
            self._metrics.count_unknown(status, reason)
        else:
            seconds = time.perf_counter() - self._started_s
            self._children.count_answer(
                status, seconds, timing, reason=reason, full_size=self._full_size
            )


async def _streamed(stream: ReplyStream, request_id: str, measure: _Measure) -> StreamedAnswer:
    try:
        status, headers = stream_head(await stream.first(), request_id)
    except BaseException:
        await stream.close()
        raise
    return StreamedAnswer(status, headers, stream, measure.end)


async def _read(target: Target, headers: dict[str, str], body: bytes, query: str = "") -> Request:
    if len(body) > _LARGE_FORM_BYTES and is_form(headers.get("content-type", "")):
        return await asyncio.to_thread(read_request, target, headers, body, query)
    return read_request(target, headers, body, query)


def _no_worker_text(target: Target) -> str:
    # Word for word, unbalanced quote included: TorchServe 0.12.
    version = "" if target.model_version is None else f' Version {target.model_version}"'
    return (
        f'Model "{target.model_name}"{version} has no worker to serve inference request. '
        "Please use scale workers API to add workers. If this is a sequence inference, please "
        "check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
    )
