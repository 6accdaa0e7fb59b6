"""Remembers the registry for the time when Redis has forgotten it."""

from collections.abc import Callable, Mapping

from batching.models.entry import ModelEntry, specs_of
from batching.store.registry.registry import Registry


class RegistryMemory:
    """Knows what is registered, and registers it again where Redis has lost it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._epoch = ""
        self._known: Mapping[str, ModelEntry] = {}
        self._unreadable: list[str] = []

    def look(self, on_emptied: Callable[[], object] = lambda: None) -> Mapping[str, ModelEntry]:
        """Returns what is registered now.

        What an emptied Redis forgot has been registered again. Blocks.

        Each node does this, and at once: doing it twice is harmless. That Redis was emptied shows
        in another epoch, too: a node that knows of no model may have been the first to come back,
        and have set it.

        Args:
            on_emptied: called before that is done. Who asks for a version that has no worker is
                refused; who asks for one that is not back yet waits for it.

        Raises:
            StoreUnavailable: Redis cannot be asked.
        """
        while True:
            # What cannot be read is not unregistered: its workers serve on.
            known = self._registry.snapshot(self._known)
            # In this order: what was read before Redis was emptied must not pass for what is left.
            epoch = self._registry.epoch()
            if epoch and epoch == self._epoch:
                self._close_removed(known)
                self._known = known
                return known
            on_emptied()
            self._registry.restore(self._known.values())
            epoch = self._registry.mark()
            # It may have been emptied again before it was marked.
            if self._known.keys() <= self._registry.snapshot().keys():
                self._epoch = epoch

    def _close_removed(self, known: Mapping[str, ModelEntry]) -> None:
        """Queues of versions whose record was unreadable, and has been removed since, are closed.

        Whoever unregisters a version closes its queue, but nobody could read here which versions
        there were. (Not for all versions that are gone: in a cluster each is a connection.)
        """
        kept = {spec.key for spec in specs_of(known.values())}
        for spec in specs_of(self._known[name] for name in self._unreadable):
            if spec.key not in kept:
                self._registry.close_queue(spec.key)
        # What cannot be read is handed on as it was.
        self._unreadable = [name for name, one in known.items() if one is self._known.get(name)]
