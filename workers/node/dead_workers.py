"""Takes back what dead nodes' workers held. Every node runs one; the first one to look acts."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from batching.models.spec import VersionKey
from batching.store.node_queue import NodeQueue, ReclaimMode
from batching.store.redis_errors import AWAY, OutageLog

log = logging.getLogger(__name__)

# Otherwise all nodes would look at the same moment; now the first one leaves nothing to the others.
JITTER_S = 0.1


class DeadWorkers:
    """Looks for workers whose node has gone silent, whenever a beat is overdue."""

    def __init__(
        self,
        queue: NodeQueue,
        versions: Callable[[], Iterable[VersionKey]],
        is_steady: Callable[[VersionKey | None], bool],
        overdue: Callable[[], Awaitable[None]],
        outage: OutageLog,
    ) -> None:
        self._queue = queue
        self._versions = versions
        self._is_steady = is_steady
        self._overdue = overdue
        self._outage = outage

    async def run(self) -> None:
        """Reaps until cancelled; a worker that is overdue after an error is noticed next beat."""
        while True:
            await self._overdue()
            await asyncio.sleep(random.uniform(0, JITTER_S))  # noqa: S311
            try:
                await self.reap()
            except AWAY as error:
                self._outage.note("reap", error)
            else:
                self._outage.over("reap")

    async def reap(self) -> None:
        """Looks once for dead workers of all versions, and for dead nodes."""
        groups = self._queue.groups(key for key in self._versions() if self._is_steady(key))
        calls = [partial(self._reap_versions, group) for group in groups if group]
        await self._queue.together([self._reap_nodes, *calls] if self._is_steady(None) else calls)

    async def _reap_versions(self, group: Sequence[VersionKey]) -> None:
        for key, worker_id in await self._queue.dead_workers(group):
            count = await self._queue.reclaim(key, worker_id, ReclaimMode.DEAD)
            if count is not None:
                log.warning(
                    "reclaimed model=%s version=%s worker=%s requests=%d", *key, worker_id, count
                )

    async def _reap_nodes(self) -> None:
        for gone in await self._queue.forget_nodes(await self._queue.dead_nodes()):
            log.warning(
                "node gone node=%s host=%s silent_s=%.1f",
                gone.node_id,
                gone.hostname,
                gone.silent_s,
            )
