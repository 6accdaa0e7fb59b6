"""Predictions as every door sees them: a version, and why one cannot serve. Knows no transport."""

import asyncio
import logging
import time
from collections.abc import Mapping

from batching.errors import NoWorker, PredictionFailed, ServeError, VersionNotFound
from batching.models.entry import check_names
from batching.models.spec import ModelSpec, VersionKey
from batching.protocol import Reply, Request, fresh_request_id
from batching.store.background_tasks import BackgroundTasks
from batching.store.broker import Broker
from batching.store.registry.catalog import Catalog
from ingress.metrics.ingress_metrics import Metrics

log = logging.getLogger(__name__)

LOWEST_STATUS = 500
# A server that refuses thousands of requests a second logs a few of them.
MAX_LINES = 5
PERIOD_S = 1.0

_SAME_ERROR_S = 1.0


class FailedRequests:
    """Logs which requests were answered with 5xx, so that a request id leads to the reason.

    The access log has TorchServe's form, which has no place for a reason. Logs a few lines a
    second, and a count of what was left out. Lives on one event loop.
    """

    def __init__(self, *, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._failed = 0  # in this period

    def note(self, request_id: str, status: int, reason: str, asked: Mapping[str, str]) -> None:
        """Logs this failure; `reason` is empty where a handler has chosen the status."""
        if self._failed == 0:
            asyncio.get_running_loop().call_later(self._period_s, self._end_period)
        self._failed += 1
        if self._failed <= MAX_LINES:
            wanted = " ".join(f"{name}={value}" for name, value in asked.items())
            line = "failed request=%s status=%d reason=%s %s"
            log.warning(line, request_id, status, reason or "handler", wanted)

    def _end_period(self) -> None:
        left_out, self._failed = self._failed - MAX_LINES, 0
        if left_out > 0:
            log.warning("failed requests left_out=%d", left_out)


class PredictionService:
    """Finds versions, and why one cannot serve. Lives on the broker's event loop.

    `tells_errors`: clients may be told why a model could not be loaded, in its handler's words.
    """

    def __init__(self, catalog: Catalog, broker: Broker, metrics: Metrics) -> None:
        self._catalog = catalog
        self.broker = broker
        self.metrics = metrics
        self.tells_errors = False
        self.failed = FailedRequests()
        self.background = BackgroundTasks()
        # What `resolve` would return, if that needs no question to Redis.
        self.known = catalog.known
        self._load_error = (VersionKey("", ""), 0.0, "")

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

    async def describe(self, spec: ModelSpec) -> Reply:
        """Asks a worker's handler to describe itself.

        Source: TorchServe 0.12 describe job, a batch row without parts, with the header `describe`.

        Raises:
            ServeError: no worker, or no answer.
        """
        wire = Request({"describe": "True"}, []).to_wire()
        reply = await self.broker.predict(spec, wire, request_id=fresh_request_id())
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
        reason = await self.broker.why_unknown(error)
        if reason is not error:
            return reason
        self._catalog.forget(spec.model_name)
        try:
            await self.resolve(*spec.key)
        except ServeError as refusal:
            return refusal
        # All nodes are of another release, or none was there when a cluster's server was emptied.
        return NoWorker("", retry_after_s=1.0)
