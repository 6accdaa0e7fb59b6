"""Predictions as every door sees them: a version, a request and a deadline in, a reply out.

Knows no transport: a door reads the request from its own, and writes the reply into it.
"""

import time

from batching.errors import NoWorker, PredictionFailed, ServeError, VersionNotFound
from batching.models.entry import check_names
from batching.models.spec import ModelSpec, VersionKey
from batching.protocol import BatchTiming, Reply, Request
from batching.request_ids import fresh_request_id
from batching.store.broker import Broker
from batching.store.pending_request import PendingRequest
from batching.store.registry.catalog import Catalog
from ingress.metrics.ingress_metrics import Metrics, VersionMetrics
from ingress.predictions.failed_requests import LOWEST_STATUS, FailedRequests

_SAME_ERROR_S = 1.0


class Prediction(PendingRequest):
    """One request, from its door until it is counted. `spec` is None until its version is found.

    A door's own kind of prediction says how an outcome is answered.
    """

    spec: ModelSpec | None = None
    metrics: VersionMetrics | None = None

    def __init__(self, service: "PredictionService") -> None:
        super().__init__(fresh_request_id())
        self.started_s = time.perf_counter()
        self.service = service


class PredictionService:
    """Finds versions, asks their workers and counts. Lives on the broker's event loop.

    A door makes one `Prediction` per request and calls `known` or `resolve`, `arrive`, `submit`,
    and `end` unless its client has left.
    """

    def __init__(self, catalog: Catalog, broker: Broker, metrics: Metrics) -> None:
        self._catalog = catalog
        self._broker = broker
        self._metrics = metrics
        self._failed = FailedRequests()
        self._load_error = (VersionKey("", ""), 0.0, "")
        # What `resolve` would return, if that needs no question to Redis.
        self.known = catalog.known

    async def resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        """Returns the version of this name, or the model's default version.

        Raises:
            ModelNotFound, VersionNotFound: unknown, or no name that a model could have.
            StoreUnavailable: not known here, and Redis does not answer.
        """
        check_names(model_name, model_version)
        return await self._catalog.resolve(model_name, model_version)

    async def only_startup_model(self) -> str:
        """Returns the name of the model loaded at startup; empty if there is not exactly one."""
        startup_models = await self._catalog.startup_models()
        return startup_models[0] if len(startup_models) == 1 else ""

    def forget(self, model_name: str) -> None:
        """Makes the next prediction of this model ask the registry."""
        self._catalog.forget(model_name)

    def arrive(self, prediction: Prediction, spec: ModelSpec, asked_version: str | None) -> None:
        """Counts the request for this version; `asked_version` is the client's, or None."""
        prediction.spec = spec
        prediction.metrics = metrics = self._metrics.version(spec.key, asked_version)
        metrics.totals.count_arrival()

    def submit(self, prediction: Prediction, request: Request) -> None:
        """Sends the request to a worker; the outcome comes as a call of the prediction.

        Args:
            prediction: has arrived; its `timeout_s` is the client's, or 0 for the version's own.
            request: let go before the wait, as its encoded form is held until the reply.
        """
        assert prediction.spec is not None
        if not prediction.is_over:
            prediction.wire = request.to_wire()
            self._broker.submit(prediction.spec, prediction)

    def end(
        self, prediction: Prediction, status: int, timing: BatchTiming | None, reason: str
    ) -> None:
        """Counts the answer, and logs a failure.

        Args:
            prediction: not ended before.
            status: as replies and errors have it.
            timing: of its batch, if it ran in one.
            reason: the word for what went wrong; empty when nothing did.
        """
        spec, metrics = prediction.spec, prediction.metrics
        if status >= LOWEST_STATUS:
            name, version = spec.key if spec else ("unknown", "unknown")
            asked = {"model": name, "version": version}
            self._failed.note(prediction.request_id, status, reason, asked)
        if spec is None or metrics is None:
            self._metrics.count_unknown(status, reason)
            return
        seconds = time.perf_counter() - prediction.started_s
        metrics.count_answer(status, seconds, timing, reason=reason, full_size=spec.batch_size)

    async def describe(self, spec: ModelSpec) -> Reply:
        """Asks a worker's handler to describe itself.

        Source: TorchServe 0.12 describe job, a batch row without parts, with the header `describe`.

        Raises:
            ServeError: no worker, or no answer.
        """
        request = Request({"describe": "True"}, [])
        reply = await self._broker.predict(spec, request.to_wire(), request_id=fresh_request_id())
        if not isinstance(reply, Reply):
            await reply.close()
            raise PredictionFailed("Invalid model predict output")
        return reply

    async def why_no_worker(self, spec: ModelSpec) -> str:
        """Returns why the version could not be loaded; empty if it could, or may still be.

        Redis is asked once a second at most: clients of such a model may be many.
        """
        now_s = time.monotonic()
        key, asked_s, why = self._load_error
        if key != spec.key or now_s - asked_s > _SAME_ERROR_S:
            why = spec.load_error or await self._catalog.load_error(spec.key)
            self._load_error = (spec.key, now_s, why)
        return why

    async def why_unknown(self, spec: ModelSpec, error: VersionNotFound) -> ServeError:
        """Returns the reason why a version that was known has no queue."""
        reason = await self._broker.why_unknown(error)
        if reason is not error:
            return reason
        self._catalog.forget(spec.model_name)
        try:
            await self.resolve(*spec.key)
        except ServeError as refusal:
            return refusal
        # All nodes are of another release, or none was there when a cluster's server was emptied.
        return NoWorker("", retry_after_s=1.0)
