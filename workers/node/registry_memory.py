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
        """Returns what is registered now; first registers again what an emptied Redis forgot.

        Blocks. All nodes do this at once: doing it twice is harmless. A new epoch shows, too, that
        Redis was emptied, as a node that knows of no model may have come back first and set it.

        Args:
            on_emptied: called before models are registered again. Requests to a version without a
                worker are refused; requests to one that is not back yet wait for it.

        Raises:
            StoreUnavailable: Redis cannot be asked.
        """
        while True:
            # A version whose record cannot be read is not unregistered: its workers serve on.
            known = self._registry.snapshot(self._known)
            # Read after the models: models from before an emptying must not pass for what is left.
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
        """Closes the queues of versions whose record was unreadable and has been removed since.

        An unregistration closes a version's queue, but cannot tell which versions an unreadable
        record had. (Not for all versions that are gone: in a cluster each is a connection.)
        """
        kept = {spec.key for spec in specs_of(known.values())}
        for spec in specs_of(self._known[name] for name in self._unreadable):
            if spec.key not in kept:
                self._registry.close_queue(spec.key)
        # The registry hands on a record that it cannot read as it was.
        self._unreadable = [name for name, one in known.items() if one is self._known.get(name)]
