"""Beats for the node and for its workers, from a process that computes nothing."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from batching.model_spec import VersionKey
from batching.status import NodeStatus
from batching.store.connection import RedisError
from batching.store.node_verbs import NodeVerbs
from workers.slot import Slot

log = logging.getLogger("workers.heartbeat")

BEAT_S = 1.0


class Heartbeat:
    """Says every second, by Redis' clock, that this node and its workers are alive."""

    def __init__(
        self,
        verbs: NodeVerbs,
        node: NodeStatus,
        slots: Callable[[], Iterable[Slot]],
        on_forgotten: Callable[[], None],
    ) -> None:
        self._verbs = verbs
        self._node = node
        self._slots = slots
        self._on_forgotten = on_forgotten
        self._is_unsure = False

    async def run(self) -> None:
        """Beats until cancelled; a beat that fails is made up for by the next one."""
        while True:
            try:
                await self.beat()
            except (RedisError, OSError) as error:
                self._is_unsure = True
                log.warning("beat failed: %s", error)
            await asyncio.sleep(BEAT_S)

    async def beat(self) -> None:
        """One beat. A Redis that was emptied, or a reaper that was wrong, knows us again.

        So does one that carried out a beat whose answer was lost.
        """
        worker_ids: dict[VersionKey, list[str]] = defaultdict(list)
        for slot in self._slots():
            if slot.worker_id and slot.is_expected:
                worker_ids[slot.spec.key].append(slot.worker_id)
        for key, ids in worker_ids.items():
            await self._verbs.beat_workers(key, ids)
        if await self._verbs.join(self._node, is_unsure=self._is_unsure):
            for slot in self._slots():
                await slot.report_again()
            self._on_forgotten()
        self._is_unsure = False
