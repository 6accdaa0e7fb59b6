"""Takes back what dead nodes' workers held. Every node runs one; one of them acts per period."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from batching.model_spec import VersionKey
from batching.store.connection import RedisError
from batching.store.node_verbs import NodeVerbs
from batching.store.reclaiming import ReclaimMode

log = logging.getLogger("workers.reaper")

REAP_S = 0.5
JITTER_S = 0.1
# A dead node's record only takes room: nobody lists it.
FORGET_S = 5.0


class Reaper:
    """Looks twice a second for workers whose node has gone silent."""

    def __init__(
        self,
        verbs: NodeVerbs,
        node_id: str,
        versions: Callable[[], Iterable[VersionKey]],
        is_steady: Callable[[VersionKey], bool],
    ) -> None:
        self._verbs = verbs
        self._node_id = node_id
        self._versions = versions
        self._is_steady = is_steady
        self._forget_at = 0.0

    async def run(self) -> None:
        """Reaps until cancelled."""
        while True:
            await asyncio.sleep(REAP_S + random.uniform(-JITTER_S, JITTER_S))  # noqa: S311
            try:
                await self.reap()
            except (RedisError, OSError) as error:
                log.warning("reaping failed: %s", error)

    async def reap(self) -> None:
        """Once over all versions."""
        try:
            if not await self._verbs.lock_reaping(self._node_id):
                return
        except RedisError:
            # At maxmemory the lock is refused. Reaping without it is harmless: the script decides.
            log.debug("reaping without the lock")
        groups = self._verbs.groups(key for key in self._versions() if self._is_steady(key))
        calls: list[Callable[[], Awaitable[None]]] = [
            partial(self._reap_versions, group) for group in groups
        ]
        if time.monotonic() >= self._forget_at:
            calls.append(self._reap_nodes)
        await self._verbs.together(calls)

    async def _reap_versions(self, group: Sequence[VersionKey]) -> None:
        for key, worker_id in await self._verbs.dead_workers(group):
            count = await self._verbs.reclaim(key, worker_id, ReclaimMode.DEAD)
            if count is not None:
                log.warning(
                    "reclaimed model=%s version=%s worker=%s requests=%d", *key, worker_id, count
                )

    async def _reap_nodes(self) -> None:
        await self._verbs.forget_nodes(await self._verbs.dead_nodes())
        self._forget_at = time.monotonic() + FORGET_S
