"""Answers who waits for a version that nobody is to run any more, and clears away what is left."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from batching.models.spec import ModelSpec, VersionKey
from batching.store.node_side.node_queue import NodeQueue

log = logging.getLogger(__name__)


class UnregisteredVersions:
    """Remembers versions that were unregistered, or scaled to nothing, until no worker is left.

    Every node runs one: a worker's own node may be the one that dies before its last batch is over.
    """

    def __init__(self, verbs: NodeQueue) -> None:
        self._verbs = verbs
        # Of each of them, whether it is still registered.
        self._ended: dict[VersionKey, bool] = {}
        self._is_new = True

    @property
    def ended(self) -> list[VersionKey]:
        """Versions that may have workers, or requests that wait, and are to have none."""
        return list(self._ended)

    def follow(self, before: Iterable[ModelSpec], specs: Mapping[VersionKey, ModelSpec]) -> None:
        """`ended` has what is to have no workers any more, and nothing that is wanted again.

        Args:
            before: what was registered at the last look.
            specs: what is registered now.
        """
        # Registered versions that had no workers before need no look. A new node cannot know which
        # these are, as the only node that had some may have died: it looks at all of them once.
        known = {spec.key for spec in before if spec.min_worker > 0 or spec.key not in specs}
        if self._is_new:
            self._is_new, known = False, set(specs)
        self._ended = {
            key: key in specs
            for key in known.union(self._ended)
            if key not in specs or specs[key].min_worker == 0
        }

    async def look(self) -> None:
        """Nobody waits for a version that has lost its last worker for good."""
        await self._verbs.together([partial(self._close, *ended) for ended in self._ended.items()])

    async def _close(self, key: VersionKey, is_registered: bool) -> None:
        # Asked first: what is given back after that is refused with the next look.
        is_staffed = await self._verbs.is_staffed(key)
        reason = "no_worker" if is_registered else "unregistered"
        if count := await self._verbs.refuse_waiting(key, reason):
            log.warning("refused model=%s version=%s requests=%d", *key, count)
        if is_staffed:
            return
        if not is_registered:
            await self._verbs.bury(key)
        self._ended.pop(key, None)
