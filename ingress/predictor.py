"""Answers a prediction: resolve, read, submit, wait, write. Both doors call it."""

import asyncio
import time

from batching.errors import ModelNotFound, NoWorker, ServeError, VersionNotFound
from batching.model_spec import NAME_PATTERN, ModelSpec
from batching.protocol import Reply, Request
from batching.store.broker import Broker
from batching.store.catalog import Catalog
from batching.store.lane import ClientGone
from batching.telemetry import Metrics, VersionMetrics
from ingress.answers import Answer, error_answer, fresh_request_id, reply_answer
from ingress.payload import read_request, read_timeout_s
from ingress.prediction_paths import Target

# A form larger than this is parsed in a thread: 6 MB of percent signs take half a second.
_LARGE_FORM_BYTES = 256 * 1024
_FORM_TYPES = ("multipart/form-data", "application/x-www-form-urlencoded")


class Predictor:
    """Turns (path, headers, body) into an Answer. Lives on the broker's event loop."""

    def __init__(self, catalog: Catalog, broker: Broker, metrics: Metrics) -> None:
        self._catalog = catalog
        self._broker = broker
        self._metrics = metrics

    async def answer(
        self,
        target: Target,
        headers: dict[str, str],
        body: bytes,
        client_left: ClientGone | None = None,
    ) -> Answer:
        """The one answer to this prediction; errors are answers too.

        Args:
            target: what the path names.
            headers: names in lower case; owned by this call.
            body: whole and within `max_request_size`.
            client_left: finishes when nobody waits for the answer any more.

        Raises:
            ClientLeft: there is nobody to answer.
        """
        request_id = fresh_request_id()
        started_s = time.perf_counter()
        measured: VersionMetrics | None = None
        spec: ModelSpec | None = None
        reply: Reply | None = None
        reason = ""
        try:
            spec = await self.resolve(target.model_name, target.model_version)
            measured = self._metrics.version(spec.key, target.model_version)
            measured.count_arrival()
            timeout_s = read_timeout_s(headers)
            reply = await self._broker.predict(
                spec,
                await _read(target, headers, body),
                request_id=request_id,
                timeout_s=timeout_s,
                client_left=client_left,
            )
            answer = reply_answer(reply, request_id)
            reason = reply.reason
        except ServeError as error:
            if isinstance(error, NoWorker):
                error.message = _no_worker_text(target)
            answer = error_answer(error, request_id)
            reason = error.reason
        if measured is None or spec is None:
            self._metrics.count_unknown(answer.status, reason)
        else:
            measured.count_answer(
                answer.status,
                time.perf_counter() - started_s,
                reply.timing if reply else None,
                reason=reason,
                full_size=spec.batch_size,
            )
        return answer

    async def resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        """The version that these words from a path mean.

        Raises:
            ModelNotFound, VersionNotFound: unknown, or no name that a model could have.
            StoreUnavailable: not known here, and Redis does not answer.
        """
        # Checked before anything builds a key from it.
        if not NAME_PATTERN.fullmatch(model_name):
            raise ModelNotFound(f"Model not found: {model_name}")
        if model_version is not None and not NAME_PATTERN.fullmatch(model_version):
            raise VersionNotFound(
                f"Model version: {model_version} does not exist for model: {model_name}"
            )
        return await self._catalog.resolve(model_name, model_version)

    async def describe(self, spec: ModelSpec) -> Reply:
        """What a worker's handler says of itself.

        Source: TorchServe 0.12 describe job, a batch row with the header `describe`.

        Raises:
            ServeError: no worker, or no answer.
        """
        request = read_request(Target(*spec.key, "False", ""), {"describe": "True"}, b"")
        return await self._broker.predict(spec, request, request_id=fresh_request_id())

    def forget(self, model_name: str) -> None:
        """The next prediction of this model asks the registry, without waiting for its channel."""
        self._catalog.forget(model_name)


async def _read(target: Target, headers: dict[str, str], body: bytes) -> Request:
    if len(body) > _LARGE_FORM_BYTES and headers.get("content-type", "").startswith(_FORM_TYPES):
        return await asyncio.to_thread(read_request, target, headers, body)
    return read_request(target, headers, body)


def _no_worker_text(target: Target) -> str:
    # Word for word, unbalanced quote included: TorchServe 0.12, contract 1.5.
    version = "" if target.model_version is None else f' Version {target.model_version}"'
    return (
        f'Model "{target.model_name}"{version} has no worker to serve inference request. '
        "Please use scale workers API to add workers. If this is a sequence inference, please "
        "check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
    )
