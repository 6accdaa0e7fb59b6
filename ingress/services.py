"""What the HTTP layer works with, built once by the server and passed in."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from batching.settings.settings import Settings
from batching.store.outage_log import OutageLog
from batching.store.registry.control_queue import ControlQueue
from batching.store.registry.downloads import Downloads
from batching.store.registry.registry import Registry
from ingress.access.key_file import KeyFile
from ingress.health import Health, Lifecycle
from ingress.metrics.ingress_metrics import Metrics
from ingress.predictions.http_predictions import HttpPredictions
from ingress.predictions.prediction_service import PredictionService

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The parts behind the HTTP layer.

    `loop` is the one that the predictor lives on. `keys` is None where no tokens are asked for.
    """

    settings: Settings
    registry: Registry
    health: Health
    control: ControlQueue
    downloads: Downloads
    predictor: PredictionService
    http_predictions: HttpPredictions
    metrics: Metrics
    lifecycle: Lifecycle
    loop: asyncio.AbstractEventLoop
    keys: KeyFile | None
    outage: OutageLog

    def on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns what the coroutine returns or raises on the loop.

        Blocks this thread, not the loop.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
