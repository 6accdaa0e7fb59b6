"""The parts behind every door of an ingress: what they share, whichever server runs them."""

import asyncio
import logging

from batching.metrics.declared import read_metrics_config
from batching.settings.settings import Settings
from batching.store.clients import connect, store_url
from batching.store.ingress_side.broker import Broker
from batching.store.measurements import read_metrics
from batching.store.outage_log import OutageLog
from batching.store.registry.catalog import Catalog
from batching.store.registry.control_queue import ControlQueue
from batching.store.registry.downloads import Downloads
from batching.store.registry.registry import Registry
from ingress.access.key_file import KeyFile
from ingress.health import Health, Lifecycle
from ingress.metrics.handler_metrics import HandlerMetrics
from ingress.metrics.ingress_metrics import Metrics
from ingress.metrics.torchserve_metrics import LEGACY
from ingress.predictions.http_predictions import HttpPredictions
from ingress.predictions.prediction_service import PredictionService
from ingress.services import Services

log = logging.getLogger(__name__)

# Orchestrators give a probe one second.
_PROBE_TIMEOUT_S = 0.5


class IngressParts:
    """Builds the parts without connecting; `start` and `close` run on the loop of `services`."""

    def __init__(self, settings: Settings, keys: KeyFile | None) -> None:
        self._settings = settings
        self._keys = keys
        self.lifecycle = Lifecycle()
        self.metrics = Metrics(
            is_logging=settings.is_logging_metrics,
            unlogged=LEGACY if settings.metrics_mode == "legacy" else (),
        )
        url = store_url(settings)
        self.client = connect(url)
        self.registry = Registry(self.client, dead_after_s=settings.dead_after_s)
        self._outage = OutageLog(log, settings.redis_url)
        self._catalog = Catalog(self.registry, url, self._outage)
        self.broker = Broker(url, self._outage, dead_after_s=settings.dead_after_s)
        probe_client = connect(url, socket_timeout_s=_PROBE_TIMEOUT_S)
        self.probe_registry = Registry(probe_client, dead_after_s=settings.dead_after_s)
        self.metrics.watch(
            self.probe_registry, lambda: self.broker.waiting, self.broker.resubmitted
        )
        self.metrics.registry.register(
            HandlerMetrics(
                self.probe_registry,
                lambda key: read_metrics(probe_client, key),
                read_metrics_config(settings.metrics_config),
            )
        )

    def services(self, loop: asyncio.AbstractEventLoop) -> Services:
        """Returns what the HTTP layer works with; predictions run on this loop."""
        predictor = PredictionService(self._catalog, self.broker, self.metrics)
        return Services(
            settings=self._settings,
            registry=self.registry,
            health=Health(self.probe_registry, self.lifecycle),
            control=ControlQueue(self.client),
            downloads=Downloads(self.client),
            predictor=predictor,
            http_predictions=HttpPredictions(
                predictor, is_open_inference=self._settings.open_inference_rows
            ),
            metrics=self.metrics,
            lifecycle=self.lifecycle,
            loop=loop,
            keys=self._keys,
            outage=self._outage,
        )

    async def start(self) -> None:
        """Begins to listen for changes of the registry."""
        await self._catalog.start()

    async def close(self) -> None:
        """Refuses the requests that still wait, and closes the connections."""
        await self.broker.close()
        await self._catalog.close()


def open_keys(settings: Settings) -> KeyFile | None:
    """Opens the key file; None when no tokens are asked for."""
    path = settings.keys_path()
    if path is None:
        return None
    keys = KeyFile(path.absolute(), lifetime_min=settings.token_expiration_min)
    keys.open()
    return keys
