"""Removes the metrics of versions that are no longer registered."""

import asyncio
import logging

from batching.errors import StoreUnavailable
from batching.models.spec import VersionKey
from batching.process.daemon_thread import in_daemon_thread
from batching.store.registry.registry import Registry
from ingress.metrics.ingress_metrics import Metrics

log = logging.getLogger(__name__)

# Long enough for scrapes, which are seconds apart, and for a version that is registered again soon.
LOOK_S = 300.0


class StaleSeries:
    """Keeps /metrics from growing for ever where each build is a version of its own."""

    def __init__(self, registry: Registry, metrics: Metrics, *, interval_s: float = LOOK_S) -> None:
        self._registry = registry
        self._metrics = metrics
        self._interval_s = interval_s
        self._missing: frozenset[VersionKey] = frozenset()

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    async def look(self) -> None:
        """Removes the series of versions that were unregistered at this look and the one before."""
        try:
            specs = await in_daemon_thread(self._registry.specs)
        except StoreUnavailable:
            self._missing = frozenset()  # Redis may come back empty, until the nodes fill it
            return
        missing = self._metrics.versions() - {spec.key for spec in specs}
        gone, self._missing = missing & self._missing, missing - self._missing
        for key in gone:
            self._metrics.forget(key)
            log.info("forgot metrics of model=%s version=%s", *key)
