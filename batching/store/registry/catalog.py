"""Caches the registry in the ingress, so that a prediction costs no look-up."""

import asyncio
import contextlib

from batching.errors import StoreUnavailable
from batching.models.entry import ModelEntry, pick_version
from batching.models.spec import ModelSpec, VersionKey
from batching.store.background_tasks import end_tasks, keep_going
from batching.store.clients import connect_async
from batching.store.redis_errors import AWAY, OutageLog, queue_lost, store_unavailable
from batching.store.registry.registry import Registry, changed_models

RECONNECT_S = 0.2
LOOK_UP_PATIENCE_S = 0.8  # the same as a submit's
# After Redis was emptied, a node restores the registry within a beat. A new node, which knows no
# model, may be the first to give Redis its new epoch.
RESTORED_WITHIN_S = 1.5
ASK_AGAIN_S = 0.2


class Catalog:
    """Resolves model names from memory; drops an entry when the registry announces its change.

    Entries are only kept while the catalog listens for changes. Unknown names are not cached, so
    that they cannot fill the memory. A request for an unknown model waits while an emptied Redis
    may not have been restored yet.
    """

    def __init__(
        self,
        registry: Registry,
        redis_url: str,
        outage: OutageLog,
        *,
        restored_within_s: float = RESTORED_WITHIN_S,
    ) -> None:
        self._restored_within_s = restored_within_s
        self._registry = registry
        self._redis_url = redis_url
        self._outage = outage
        self._entries: dict[str, ModelEntry] = {}
        self._epoch = ""
        self._is_emptied = False
        self._restored_at_s = 0.0  # in the event loop's time
        self._changes_seen = 0
        self._is_listening = False
        self._startup_models: tuple[int, list[str]] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._asked: dict[tuple[str, int], asyncio.Future[ModelEntry | None]] = {}

    async def start(self) -> None:
        self._listener = asyncio.create_task(keep_going(self._listen, "of the catalog"))

    async def close(self) -> None:
        if self._listener:
            await end_tasks([self._listener])

    def known(self, model_name: str, model_version: str | None) -> ModelSpec | None:
        """Returns what `resolve` would, but None if that would have to ask Redis."""
        entry = self._entries.get(model_name)
        if entry is None:
            return None
        version = entry.default_version if model_version is None else model_version
        return entry.versions.get(version)

    async def resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        """Returns the version that a request for this name (and version) means.

        A known model stays known while Redis is away; then `submit` decides whether a request for
        it can be served.

        Raises:
            ModelNotFound: no such model.
            VersionNotFound: no such version of it.
            StoreUnavailable: the name is unknown, and Redis cannot be asked.
            QueueLost: the name is unknown, and no node has restored the emptied registry yet.
        """
        entry = self._entries.get(model_name)
        if entry is None:
            changes_seen = self._changes_seen
            entry = await self._look_up_together(model_name)
            # The entry may be older than a change that was announced meanwhile.
            is_current = self._is_listening and changes_seen == self._changes_seen
            if entry is not None and is_current:
                self._entries[model_name] = entry
        return pick_version(entry, model_name, model_version)

    async def startup_models(self) -> list[str]:
        """Returns the names of the models that were loaded when a server started.

        Raises:
            StoreUnavailable: Redis cannot be asked.
        """
        changes_seen = self._changes_seen
        if self._startup_models is not None and self._startup_models[0] == changes_seen:
            return self._startup_models[1]
        entries = await asyncio.to_thread(self._registry.snapshot)
        names = [
            name
            for name, entry in entries.items()
            if any(spec.is_loaded_at_startup for spec in entry.versions.values())
        ]
        self._startup_models = (changes_seen, names) if self._is_listening else None
        return names

    async def load_error(self, key: VersionKey) -> str:
        """Returns why a worker of this version could not load it; empty if all could."""
        with contextlib.suppress(StoreUnavailable):
            workers = await asyncio.to_thread(self._registry.workers, key)
            return next((worker.error for worker in workers if worker.error), "")
        return ""

    def forget(self, model_name: str) -> None:
        """Makes the next request for this model ask the registry."""
        self._changes_seen += 1
        self._entries.pop(model_name, None)

    async def _look_up_together(self, model_name: str) -> ModelEntry | None:
        """Looks up once for requests that ask at the same time; they go on in their order."""
        question = (model_name, self._changes_seen)
        is_first = question not in self._asked
        if is_first:
            asking = self._asked[question] = asyncio.ensure_future(self._look_up(model_name))
            asking.add_done_callback(lambda _: self._asked.pop(question))
            del asking  # its error's traceback leads here, and to the bodies of who asks
        entry = await asyncio.shield(self._asked[question])
        # The answer is as old as the first question; the model may have come since.
        return entry if entry or is_first else await self._look_up(model_name)

    async def _look_up(self, model_name: str) -> ModelEntry | None:
        def ask() -> tuple[ModelEntry | None, str]:
            # In this order: a model that was missing before Redis was restored is not unknown.
            return self._registry.get(model_name), self._registry.epoch()

        now = asyncio.get_running_loop().time
        end_s = now() + self._restored_within_s
        while True:
            try:
                async with asyncio.timeout(LOOK_UP_PATIENCE_S):
                    entry, epoch = await asyncio.to_thread(ask)
            except TimeoutError:
                # The thread waits on, as it learns late that Redis is cut off. Threads are few, so
                # requests do not wait for it.
                raise store_unavailable() from None
            except StoreUnavailable as error:
                # The listener's connection may be up although new ones are refused.
                self._outage.note("look up", error)
                raise
            self._outage.over("look up")
            self._note(epoch)
            is_complete = not self._is_emptied and now() >= self._restored_at_s
            if entry is not None or is_complete:
                return entry
            if now() >= end_s:
                raise queue_lost()
            await asyncio.sleep(ASK_AGAIN_S)

    def _note(self, epoch: str) -> None:
        """Notes the epoch of Redis: if it is missing or has changed, Redis was emptied."""
        if epoch == self._epoch or not self._epoch:
            self._epoch, self._is_emptied = epoch, False
            return
        self._is_emptied = not epoch
        if epoch:
            self._epoch = epoch
            self._restored_at_s = asyncio.get_running_loop().time() + self._restored_within_s
            # Models that no node restores would stay known for ever.
            self._changes_seen += 1
            self._entries.clear()

    async def _listen(self) -> None:
        while True:
            try:
                await self._follow_changes()
            except (*AWAY, StoreUnavailable) as error:
                self._outage.note("listen", error)
                await asyncio.sleep(RECONNECT_S)

    async def _follow_changes(self) -> None:
        client = connect_async(self._redis_url)
        try:
            async with client, contextlib.aclosing(changed_models(client)) as changes:
                async for model_name in changes:
                    if model_name is None:
                        self._note(await asyncio.to_thread(self._registry.epoch))
                        # Without a connection, any change may have been missed.
                        self._changes_seen += 1
                        self._entries.clear()
                        self._is_listening = True
                        self._outage.over("listen", is_for_all=True)
                    else:
                        self.forget(model_name)
                        if not self._epoch:
                            # No node had come before. Without an epoch nobody would see that Redis
                            # was emptied, until a request is looked up.
                            self._note(await asyncio.to_thread(self._registry.epoch))
        finally:
            self._is_listening = False
