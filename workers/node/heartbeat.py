"""Beats for the node and for its workers, from a process that computes nothing.

Takes back the requests of silent workers, too.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from batching.models.spec import VersionKey
from batching.models.statuses import NodeStatus
from batching.store.node_queue import NodeQueue, ReclaimMode
from batching.store.redis_errors import AWAY, OutageLog
from workers.slots.slot import SlotRecord

log = logging.getLogger(__name__)

# Each beat also wakes a worker for requests that wait, so a lost wakeup costs less than a second.
BEAT_S = 0.9
# How late to look: at its deadline, to the millisecond, a silent worker still counts as alive.
OVERDUE_S = 0.02
# Otherwise all nodes would look at the same moment; now the first one leaves nothing to the others.
JITTER_S = 0.1


@dataclass
class Heartbeat:
    """Tells Redis every `beat_s` that this node and its workers are alive.

    Each answer says for how long other nodes, and workers of these versions, have been silent. In
    the collections of version keys, None stands for the nodes.
    """

    queue: NodeQueue
    node: NodeStatus
    records: Callable[[], Iterable[SlotRecord]]
    versions: Callable[[], Iterable[VersionKey]]
    on_forgotten: Callable[[], None]
    outage: OutageLog
    dead_after_s: float = 3.0
    beat_s: float = BEAT_S
    _is_in_doubt: bool = field(default=False, init=False)
    _is_forgotten: bool = field(default=False, init=False)
    # What Redis may have forgotten: a beat's answer was lost.
    _unsure: set[VersionKey | None] = field(default_factory=set, init=False)
    _heard_at: dict[VersionKey | None, float] = field(default_factory=dict, init=False)
    _steady_from: dict[VersionKey | None, float] = field(default_factory=dict, init=False)
    _is_overdue: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Beats until cancelled; after a failed beat, the next one is soon enough."""
        while True:
            started = time.monotonic()
            try:
                await self.beat()
            except AWAY as error:
                self.outage.note("beat", error)
            else:
                self.outage.over("beat", is_for_all=True)
            await asyncio.sleep(max(0.1, self.beat_s - (time.monotonic() - started)))

    async def beat(self) -> None:
        """Beats once; repeats everything if Redis had forgotten this node or a worker.

        Redis was emptied then, or another node took a living worker for dead. It also repeats
        everything after a beat whose answer was lost, as that answer may have said so.
        """
        workers: dict[VersionKey, list[str]] = {key: [] for key in self.versions()}
        for record in self.records():
            if record.worker_id and record.is_expected:
                workers.setdefault(record.key, []).append(record.worker_id)
        now = time.monotonic()
        self._unsure &= {*workers, None}
        # A new version counts as beaten for at this first try: waiting for the first success would
        # miss an outage that begins before it.
        self._heard_at = {key: self._heard_at.get(key, now) for key in (*workers, None)}
        if self._is_in_doubt:
            self._is_in_doubt = False
            self._unsure.update(workers, [None])
        groups = [{key: workers[key] for key in group} for group in self.queue.groups(workers)]
        node_ids = [self.node.node_id, *[None] * (len(groups) - 1)]
        calls = [partial(self._beat_group, *each) for each in zip(groups, node_ids, strict=True)]
        await self.queue.together(calls)
        if self._is_forgotten:
            self._is_forgotten = False
            self.on_forgotten()

    def doubt(self) -> None:
        """Makes the next beat repeat everything: Redis may have an older state by now."""
        self._is_in_doubt = True

    def is_steady(self, key: VersionKey | None) -> bool:
        """Returns whether silent workers of this version, or silent nodes (None), count as dead.

        Not after an outage of our own beats: then all look dead until all have had time to beat.
        """
        if key not in self._heard_at:
            return True
        now = time.monotonic()
        return now - self._heard_at[key] <= self._gap_s and now >= self._steady_from.get(key, 0.0)

    @property
    def _gap_s(self) -> float:
        return max(1.5 * self.beat_s, self.dead_after_s - self.beat_s)

    async def _beat_group(
        self, workers: Mapping[VersionKey, Sequence[str]], node_id: str | None
    ) -> None:
        beaten = {*workers, None} if node_id else {*workers}
        again = self._unsure & beaten
        self._unsure |= beaten  # until the answer comes
        # The answer lists workers whose deadline comes before the beat after next; the next beat
        # lists the others in time.
        quiet_s = max(0.0, self.dead_after_s - 2 * self.beat_s)
        heard = await self.queue.beat(workers, node_id, quiet_s=quiet_s)
        await self._hide_late(workers)
        loop = asyncio.get_running_loop()
        for silent_s in set(heard.silent_s):
            overdue_in_s = max(0.0, self.dead_after_s + OVERDUE_S - silent_s)
            loop.call_later(overdue_in_s, self._is_overdue.set)
        now = time.monotonic()
        for key in beaten:
            if now - self._heard_at.get(key, now) > self._gap_s:
                self._steady_from[key] = now + self.dead_after_s
            self._heard_at[key] = now
        # A slot beats for its worker before it is seen here, so no worker should be new.
        forgotten: set[VersionKey | None]
        forgotten = {key for key, count in heard.added.items() if count > 0}
        if heard.is_new_node or None in again:
            self._unsure.update(self._heard_at)
            forgotten.update(workers, [None])
        self._is_forgotten |= bool(forgotten)
        await self._repeat(again | forgotten)
        self._unsure -= beaten

    async def _repeat(self, keys: Set[VersionKey | None]) -> None:
        for record in self.records():
            if record.key in keys:
                await record.report_again()
        for key in filter(None, keys):
            # A Redis that took over, with an older state, lists ended workers again. It is asked
            # first: a worker that begins meanwhile is known before it is listed.
            listed = await self.queue.listed_workers(key, self.node.node_id)
            known = {record.worker_id for record in self.records()}
            for worker_id in set(listed) - known:
                # Its lease may be back, too; `reap` would wait until it no longer seems to beat.
                await self.queue.reclaim(key, worker_id, ReclaimMode.DEAD)
        if None in keys:
            await self.queue.describe(self.node)
            await self.queue.forget_unheard()

    async def _hide_late(self, workers: Mapping[VersionKey, Sequence[str]]) -> None:
        """Hides the workers that were hidden, or forgotten, while the beat was on its way.

        The beat has listed them as alive. As they stay silent, they would be taken for dead, and
        their status, which says why they were given up, would be forgotten.
        """
        expected = {record.worker_id for record in self.records() if record.is_expected}
        for key, worker_ids in workers.items():
            for worker_id in set(worker_ids) - expected:
                await self.queue.hide(key, worker_id)

    # --- silent workers and nodes: every node looks for them, and the first one acts

    async def reap_forever(self) -> None:
        """Reaps whenever a beat is overdue; after an error, the next beat finds what is."""
        while True:
            await self._is_overdue.wait()
            self._is_overdue.clear()
            await asyncio.sleep(random.uniform(0, JITTER_S))  # noqa: S311
            try:
                await self.reap()
            except AWAY as error:
                self.outage.note("reap", error)
            else:
                self.outage.over("reap")

    async def reap(self) -> None:
        """Looks once for dead workers of all versions, and for dead nodes."""
        groups = self.queue.groups(key for key in self.versions() if self.is_steady(key))
        calls = [partial(self._reap_versions, group) for group in groups if group]
        await self.queue.together([self._reap_nodes, *calls] if self.is_steady(None) else calls)

    async def _reap_versions(self, group: Sequence[VersionKey]) -> None:
        for key, worker_id in await self.queue.dead_workers(group):
            count = await self.queue.reclaim(key, worker_id, ReclaimMode.DEAD)
            if count is not None:
                told = (*key, worker_id, count)
                log.warning("reclaimed model=%s version=%s worker=%s requests=%d", *told)

    async def _reap_nodes(self) -> None:
        for gone in await self.queue.forget_nodes(await self.queue.dead_nodes()):
            told = gone.node_id, gone.hostname, gone.silent_s
            log.warning("node gone node=%s host=%s silent_s=%.1f", *told)
