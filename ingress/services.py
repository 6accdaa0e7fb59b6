"""The parts behind every door of an ingress: what they share, whichever server runs them."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from batching.process.siblings import Siblings
from batching.settings.settings import Settings
from batching.store.broker import Broker
from batching.store.clients import connect, store_url
from batching.store.held_connections import Client
from batching.store.jobs.job_store import JobStore
from batching.store.redis_errors import OutageLog
from batching.store.registry.catalog import Catalog
from batching.store.registry.control_queue import ControlQueue
from batching.store.registry.registry import Registry
from ingress.access.key_file import KeyFile
from ingress.health import Health, Lifecycle
from ingress.jobs.job_answers import JobAnswers
from ingress.jobs.job_service import JobService
from ingress.metrics.host_numbers import HostNumbers
from ingress.metrics.ingress_metrics import Metrics, broker_families
from ingress.metrics.torchserve_metrics import LEGACY
from ingress.predictions.prediction import HttpPredictions
from ingress.predictions.prediction_service import PredictionService

log = logging.getLogger(__name__)

# Orchestrators give a probe one second.
_PROBE_TIMEOUT_S = 0.5

_NO_SIBLINGS = Siblings()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Holds the time limits of registrations.

    `node_s`: for a node to come. One that starts together with the ingress has to load torch first.
    `archive_s`: for an archive to be downloaded and unpacked. The largest have tens of gigabytes.
    `listed_s`: for a node to take a version on. It takes milliseconds, unless the node is busy or
    about to die. `grace_s`: beyond `startup_timeout`, which the nodes measure as well and then
    report. `remind_s`: between two log lines about a startup model that cannot be loaded yet.
    """

    node_s: float = 10.0
    archive_s: float = 900.0
    listed_s: float = 2.0
    grace_s: float = 5.0
    remind_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one ingress.

    `loop` is the one that the broker, the catalog and the predictions live on. The connections of
    `probe_client` and `probe_registry` give up soon. `keys` is None where no tokens are asked for.
    """

    settings: Settings
    keys: KeyFile | None
    loop: asyncio.AbstractEventLoop
    client: Client
    registry: Registry
    probe_client: Client
    probe_registry: Registry
    control: ControlQueue
    outage: OutageLog
    catalog: Catalog
    broker: Broker
    predictor: PredictionService
    jobs: JobAnswers
    http_predictions: HttpPredictions
    metrics: Metrics
    siblings: Siblings
    numbers: HostNumbers
    lifecycle: Lifecycle
    health: Health
    patience: TimeLimits = TimeLimits()

    def on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns what the coroutine returns or raises on the loop.

        Blocks this thread, not the loop.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def start(self) -> None:
        """Begins to listen for changes of the registry, and for siblings."""
        await self.catalog.start()
        await self.numbers.start()

    async def close(self) -> None:
        """Refuses the requests that still wait, and closes the connections."""
        await self.jobs.service.close()
        await self.broker.close()
        await self.predictor.background.close()
        await self.catalog.close()
        self.numbers.close()


def build_services(
    settings: Settings,
    keys: KeyFile | None,
    loop: asyncio.AbstractEventLoop,
    siblings: Siblings = _NO_SIBLINGS,
) -> Services:
    """Builds the parts without connecting; `start` and `close` run on this loop."""
    url, dead_after_s = store_url(settings), settings.dead_after_s
    client, probe_client = connect(url), connect(url, socket_timeout_s=_PROBE_TIMEOUT_S)
    registry = Registry(client, dead_after_s=dead_after_s)
    probe_registry = Registry(probe_client, dead_after_s=dead_after_s)
    outage = OutageLog(log, settings.redis_url)
    catalog = Catalog(registry, url, outage)
    broker = Broker(url, outage, dead_after_s=dead_after_s)
    metrics = Metrics(
        is_logging=settings.is_logging_metrics,
        unlogged=LEGACY if settings.metrics_mode == "legacy" else (),
    )
    broker_numbers = partial(broker_families, lambda: broker.waiting, broker.resubmitted)
    job_store = JobStore(
        broker.client,
        settings.job_backlog,
        settings.job_memory_share,
        is_writing_file=settings.redis_append_only,
    )
    jobs = JobAnswers(
        JobService(
            job_store,
            registry,
            timeout_s=settings.job_timeout_s,
            keep_s=settings.job_result_ttl_s,
            receivers=settings.receiver_rules(),
        ),
    )
    predictor = PredictionService(catalog, broker, metrics)
    lifecycle = Lifecycle()
    return Services(
        settings=settings,
        keys=keys,
        loop=loop,
        client=client,
        registry=registry,
        probe_client=probe_client,
        probe_registry=probe_registry,
        control=ControlQueue(client),
        outage=outage,
        catalog=catalog,
        broker=broker,
        predictor=predictor,
        jobs=jobs,
        http_predictions=HttpPredictions(predictor, jobs, settings),
        metrics=metrics,
        siblings=siblings,
        numbers=HostNumbers(lambda: [*metrics.collect(), *broker_numbers()], siblings),
        lifecycle=lifecycle,
        health=Health(probe_registry, lifecycle),
    )
