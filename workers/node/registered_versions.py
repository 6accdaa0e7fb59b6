"""Remembers what is registered, in case Redis forgets it, and what has been unregistered."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from batching.models.entry import ModelEntry
from batching.models.spec import ModelSpec, VersionKey
from batching.store.node_queue import NodeQueue
from batching.store.registry.registry import Registry

log = logging.getLogger(__name__)


class RegistryMemory:
    """Knows what is registered, and registers it again where Redis has lost it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._epoch = ""
        self._known: Mapping[str, ModelEntry] = {}

    def look(self, on_emptied: Callable[[], object] = lambda: None) -> Mapping[str, ModelEntry]:
        """Returns what is registered; first registers again what an emptied Redis forgot.

        Blocks. All nodes do this at once, which is harmless. A new epoch shows, too, that Redis was
        emptied: a node that knows no model may have come back first and set it. `on_emptied` beats
        before models are registered again: a registered version without workers refuses requests,
        while requests to a version that is not registered yet wait for it.
        """
        while True:
            # A version whose record cannot be read is not unregistered: its workers serve on.
            known = self._registry.snapshot(self._known)
            # Read after the models: with a new epoch, the old models would pass for current ones.
            epoch = self._registry.epoch()
            if epoch and epoch == self._epoch:
                self._known = known
                return known
            on_emptied()
            self._registry.restore(self._known.values())
            epoch = self._registry.mark()
            # It may have been emptied again before it was marked.
            if self._known.keys() <= self._registry.snapshot().keys():
                self._epoch = epoch


class UnregisteredVersions:
    """Remembers versions that were unregistered, or scaled to nothing, until no worker is left.

    Every node does this, as a worker's own node may die before its last batch is over.
    """

    def __init__(self, queue: NodeQueue) -> None:
        self._queue = queue
        # Version -> whether it is still registered.
        self._ended: dict[VersionKey, bool] = {}
        self._is_new = True

    @property
    def ended(self) -> list[VersionKey]:
        """Returns the versions that may still have workers or waiting requests, and should not."""
        return list(self._ended)

    def follow(self, before: Iterable[ModelSpec], specs: Mapping[VersionKey, ModelSpec]) -> None:
        """Adds the versions that should have no workers any more; drops versions wanted again."""
        # Registered versions that had no workers before are done already. A new node cannot know
        # that, as the only node with workers may have died: it looks at all versions once.
        known = {spec.key for spec in before if spec.min_worker > 0 or spec.key not in specs}
        if self._is_new:
            self._is_new, known = False, set(specs)
        self._ended = {
            key: key in specs
            for key in known.union(self._ended)
            if key not in specs or specs[key].min_worker == 0
        }

    async def look(self) -> None:
        """Refuses the requests that wait for a version whose last worker has gone for good."""
        await self._queue.together([partial(self._close, *ended) for ended in self._ended.items()])

    async def _close(self, key: VersionKey, is_registered: bool) -> None:
        # Asked first: requests that a worker gives back after this are refused at the next look.
        is_staffed = await self._queue.is_staffed(key)
        reason = "no_worker" if is_registered else "unregistered"
        if count := await self._queue.refuse_waiting(key, reason):
            log.warning("refused model=%s version=%s requests=%d", *key, count)
        if is_staffed:
            return
        if not is_registered:
            await self._queue.bury(key)
        self._ended.pop(key, None)
