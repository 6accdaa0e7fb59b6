"""Keeps a node's disk from filling up with models that are not registered any more."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from batching.models.spec import ModelSpec
from batching.process.daemon_thread import in_daemon_thread
from workers.archives.model_files import ModelFiles

log = logging.getLogger(__name__)

# Nodes may share a folder, and each has to mark what it needs in time.
LOOKS_WHILE_KEPT = 24


class DiskSweeper:
    """Marks the files of registered models, and removes those that were not marked for long."""

    def __init__(
        self,
        files: ModelFiles,
        registered: Callable[[], Awaitable[Collection[ModelSpec]]],
        *,
        kept_s: float,
    ) -> None:
        self._files = files
        self._registered = registered
        self._interval_s = kept_s / LOOKS_WHILE_KEPT

    async def run(self) -> None:
        """Sweeps until cancelled, for the first time once the registered models are known."""
        while True:
            specs = await self._registered()
            try:
                await in_daemon_thread(partial(self._files.sweep, specs))
            except OSError as error:
                log.warning("disk not cleared: %s", error)
            await asyncio.sleep(self._interval_s)
