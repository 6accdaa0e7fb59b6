"""Beats for the node and for its workers, from a process that computes nothing."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

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
        *,
        dead_after_s: float = 3.0,
    ) -> None:
        self._verbs = verbs
        self._node = node
        self._slots = slots
        self._on_forgotten = on_forgotten
        self._dead_after_s = dead_after_s
        self._is_node_unsure = False
        self._is_forgotten = False
        self._unsure: set[VersionKey] = set()
        self._heard_at: dict[VersionKey, float] = {}
        self._steady_from: dict[VersionKey, float] = {}

    async def run(self) -> None:
        """Beats until cancelled; a beat that fails is made up for by the next one."""
        while True:
            started = time.monotonic()
            try:
                await self.beat()
            except (RedisError, OSError) as error:
                log.warning("beat failed: %s", error)
            await asyncio.sleep(max(0.1, BEAT_S - (time.monotonic() - started)))

    async def beat(self) -> None:
        """One beat. A Redis that was emptied, or a reaper that was wrong, knows us again.

        So does one that carried out a beat whose answer was lost.
        """
        workers: dict[VersionKey, list[str]] = defaultdict(list)
        for slot in self._slots():
            if slot.worker_id and slot.is_expected:
                workers[slot.spec.key].append(slot.worker_id)
        self._keep(workers)
        beats = [
            partial(self._beat_versions, {key: workers[key] for key in group})
            for group in self._verbs.groups(workers)
        ]
        await self._verbs.together([partial(self._beat_node, list(workers)), *beats])
        if self._is_forgotten:
            self._is_forgotten = False
            self._on_forgotten()

    def is_steady(self, key: VersionKey) -> bool:
        """Whether silence of others means something: we were heard all the time they could be.

        After an outage everybody looks dead until everybody has had time to beat.
        """
        if key not in self._heard_at:
            return True
        now = time.monotonic()
        return now - self._heard_at[key] <= self._gap_s and now >= self._steady_from.get(key, 0.0)

    @property
    def _gap_s(self) -> float:
        return max(1.5 * BEAT_S, self._dead_after_s - BEAT_S)

    async def _beat_node(self, versions: Sequence[VersionKey]) -> None:
        is_unsure, self._is_node_unsure = self._is_node_unsure, True
        if await self._verbs.join(self._node, is_unsure=is_unsure):
            self._unsure.update(versions)
            self._is_forgotten = True
        self._is_node_unsure = False

    async def _beat_versions(self, workers: Mapping[VersionKey, Sequence[str]]) -> None:
        in_doubt = self._unsure.intersection(workers)
        self._unsure.update(workers)
        # A slot beats for its worker before it is seen here, so nobody should be new.
        added = await self._verbs.beat_workers(workers)
        forgotten = {key for key, count in added.items() if count > 0}
        for key in workers:
            self._hear(key)
        if forgotten:
            self._is_forgotten = True
        for slot in self._slots():
            if slot.spec.key in workers and slot.spec.key in in_doubt | forgotten:
                await slot.report_again()
        self._unsure.difference_update(workers)

    def _hear(self, key: VersionKey) -> None:
        now = time.monotonic()
        if now - self._heard_at.get(key, now) > self._gap_s:
            self._steady_from[key] = now + self._dead_after_s
        self._heard_at[key] = now

    def _keep(self, workers: dict[VersionKey, list[str]]) -> None:
        """What is known of others is forgotten; silence about a version counts from its first beat.

        From the first try, that is: an outage may begin before it has succeeded.
        """
        now = time.monotonic()
        self._unsure &= set(workers)
        self._heard_at = {key: self._heard_at.get(key, now) for key in workers}
