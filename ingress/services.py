"""Builds the parts that an ingress has under our own server and under any WSGI server."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client.core import Metric

from batching.errors import NoThread, StoreUnavailable
from batching.metrics import COUNTERS, GAUGES
from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerState
from batching.process.daemon_thread import in_daemon_thread
from batching.process.siblings import Siblings
from batching.settings.settings import Settings
from batching.store.arena import IngressMemory
from batching.store.broker import Broker
from batching.store.clients import connect, store_url
from batching.store.redis_errors import OutageLog
from batching.store.registry.catalog import Catalog
from batching.store.registry.control_queue import ControlQueue
from batching.store.registry.registry import Registry
from ingress.access.tokens import KeyFile
from ingress.jobs.job_service import JobService
from ingress.metrics.ingress_metrics import LEGACY, HostNumbers, Metrics, broker_families
from ingress.predictions.prediction import HttpPredictions
from ingress.predictions.prediction_service import PredictionService

log = logging.getLogger(__name__)

# Orchestrators give a probe one second.
_PROBE_TIMEOUT_S = 0.5

_NO_SIBLINGS = Siblings()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TimeLimits:
    node_s: float = 10.0  # until a node has started, which may have to load torch first
    archive_s: float = 900.0  # until an archive of tens of gigabytes is downloaded and unpacked
    listed_s: float = 2.0  # until a node lists workers: milliseconds, unless it is busy
    grace_s: float = 5.0  # beyond `startup_timeout`, which nodes measure, too, and then report
    remind_s: float = 30.0  # between log lines about a startup model that cannot be loaded yet


class Lifecycle:
    """Says whether the ingress loads its startup models, or drains. Any thread may read it."""

    is_loading = is_draining = False


class Health:
    """Answers probes from a registry whose connections give up soon: a late answer is no use."""

    def __init__(self, registry: Registry, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._last_ping = True

    def is_healthy(self) -> bool:
        """Returns whether each model's default version has its workers, loading ones included.

        While Redis is away it returns the last answer: orchestrators restart what is not healthy,
        which would not bring Redis back. TorchServe opens its ports when its startup models are
        registered; here an earlier probe gets False.
        Source: TorchServe 0.12 `ApiUtils.getHealthStatus`.
        """
        if self._lifecycle.is_loading:
            return False
        with contextlib.suppress(StoreUnavailable):
            alive = self._registry.alive_nodes()
            self._last_ping = True
            for spec in self._staffed_specs():
                workers = self._registry.workers(spec.key, alive)
                good = sum(worker.state is not WorkerState.FAILED for worker in workers)
                self._last_ping = self._last_ping and good >= spec.min_worker
        return self._last_ping

    def why_not_ready(self) -> str:
        """Returns why a request sent now could not be served; empty when it could."""
        if self._lifecycle.is_draining:
            return "Draining"
        if self._lifecycle.is_loading:
            return "Loading models"
        try:
            alive, specs = self._registry.alive_nodes(), self._staffed_specs()
            idle = [spec.model_name for spec in specs if not self.is_ready(spec, alive)]
        except StoreUnavailable:
            return "Request store unavailable"
        return f"No ready worker: {', '.join(idle)}" if idle else ""

    def is_ready(self, spec: ModelSpec, alive: Set[str] | None = None) -> bool:
        """Returns whether a worker of this version is ready, on one of the `alive` nodes if given.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        workers = self._registry.workers(spec.key, alive)
        return any(worker.state is WorkerState.READY for worker in workers)

    def _staffed_specs(self) -> list[ModelSpec]:
        entries = self._registry.snapshot().values()
        specs = [entry.versions[entry.default_version] for entry in entries]
        return [spec for spec in specs if spec.min_worker > 0]


class Services:
    """Builds the parts of one ingress without connecting; `start` and `close` run on `loop`.

    Broker, catalog and predictions live on that loop. The connections of `probe_client` and
    `probe_registry` give up soon. `keys` is None without tokens.
    """

    patience = TimeLimits()

    def __init__(
        self,
        settings: Settings,
        keys: KeyFile | None,
        loop: asyncio.AbstractEventLoop,
        siblings: Siblings = _NO_SIBLINGS,
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.loop = loop
        self.siblings = siblings
        url, dead_after_s = store_url(settings), settings.dead_after_s
        self.client = connect(url)
        self.registry = Registry(self.client, dead_after_s=dead_after_s)
        self.probe_client = connect(url, socket_timeout_s=_PROBE_TIMEOUT_S)
        self.probe_registry = Registry(self.probe_client, dead_after_s=dead_after_s)
        self.control = ControlQueue(self.client)
        self.outage = OutageLog(log, settings.redis_url)
        self.catalog = Catalog(self.registry, url, self.outage)
        memory = IngressMemory(settings.shared_memory_dir, settings.shared_memory_bytes)
        self.broker = Broker(url, self.outage, dead_after_s=dead_after_s, memory=memory)
        # The log gets what /metrics does not show.
        unlogged = LEGACY if settings.metrics_mode == "legacy" else ()
        logged = {*COUNTERS, *GAUGES} - {*unlogged} if settings.is_logging_metrics else ()
        self.metrics = Metrics(logged)
        self.numbers = HostNumbers(self._measured, siblings)
        self.lifecycle = Lifecycle()
        self.health = Health(self.probe_registry, self.lifecycle)
        self.jobs = JobService(self.broker.client, self.registry, settings)
        self.predictor = PredictionService(self.catalog, self.broker, self.metrics)
        self.http_predictions = HttpPredictions(self.predictor, self.jobs, settings)

    def on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine on the loop, and returns its result; blocks this thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def start(self) -> None:
        await self.catalog.start()
        await self.numbers.start()

    async def close(self) -> None:
        """Refuses the requests that still wait, and closes the connections."""
        await self.jobs.close()
        await self.broker.close()
        await self.predictor.background.close()
        await self.catalog.close()
        self.numbers.close()

    def _measured(self) -> list[Metric]:
        """Returns this process's families; those of unregistered versions for the last time."""
        families = [*self.metrics.collect(), *broker_families(self.broker)]
        # Afterwards, as a scrape must not wait for a Redis that stands still.
        self.loop.call_soon_threadsafe(
            lambda: self.predictor.background.start(self._forget_unregistered())
        )
        return families

    async def _forget_unregistered(self) -> None:
        with contextlib.suppress(StoreUnavailable, NoThread):
            specs = await in_daemon_thread(self.probe_registry.specs)
            # Of an emptied Redis the nodes restore it.
            if not await in_daemon_thread(self.probe_registry.is_lost):
                registered = {spec.key for spec in specs}
                self.metrics.keep_only(registered)
                for key in self.broker.resubmitted.keys() - registered:
                    del self.broker.resubmitted[key]
