"""The ingress's cached view of the registry, so that a prediction costs no look-up."""

import asyncio

from batching.errors import StoreUnavailable
from batching.model_spec import ModelSpec
from batching.store import keys
from batching.store.connection import RedisError, connect_async
from batching.store.model_entry import ModelEntry, pick_version
from batching.store.registry import Registry
from batching.store.tasks import end_tasks

RECONNECT_S = 0.2


class Catalog:
    """Resolves model names from memory; the registry's change channel drops what is outdated.

    An entry is only kept while the channel is being listened to. Unknown names are not cached, so
    nobody can fill the memory with them.
    """

    def __init__(self, registry: Registry, redis_url: str) -> None:
        self._registry = registry
        self._redis_url = redis_url
        self._entries: dict[str, ModelEntry] = {}
        self._changes_seen = 0
        self._is_listening = False
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Changes made anywhere are seen from now on."""
        self._listener = asyncio.create_task(self._listen(), name="catalog")

    async def close(self) -> None:
        """The listener's connection is closed."""
        if self._listener:
            await end_tasks([self._listener])

    async def resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        """The version that a request for this name (and version) means.

        A model that was seen before is still known while Redis is away; whether a request for it
        can be served is then for `submit` to say.

        Raises:
            ModelNotFound: no such model.
            VersionNotFound: no such version of it.
            StoreUnavailable: an unknown name, and Redis cannot be asked.
        """
        entry = self._entries.get(model_name)
        if entry is None:
            changes_seen = self._changes_seen
            entry = await asyncio.to_thread(self._registry.get, model_name)
            # What was read may be older than a change that has been announced meanwhile.
            is_current = self._is_listening and changes_seen == self._changes_seen
            if entry is not None and is_current:
                self._entries[model_name] = entry
        return pick_version(entry, model_name, model_version)

    def forget(self, model_name: str) -> None:
        """The next request for this model asks the registry."""
        self._changes_seen += 1
        self._entries.pop(model_name, None)

    async def _listen(self) -> None:
        while True:
            try:
                await self._follow_changes()
            except (RedisError, OSError, StoreUnavailable):
                self._is_listening = False
                await asyncio.sleep(RECONNECT_S)

    async def _follow_changes(self) -> None:
        client = connect_async(self._redis_url)
        async with client, client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(keys.CHANGES)
            await self._refresh()
            self._is_listening = True
            while True:
                message = await channel.get_message(timeout=None)
                if message is not None:
                    self.forget(message["data"].decode())

    async def _refresh(self) -> None:
        # While the channel was deaf, anything may have changed. If Redis lost everything, what is
        # known is kept: a node is about to restore it, and requests are being resubmitted.
        self._changes_seen += 1
        known = await asyncio.to_thread(self._registry.snapshot)
        if known:
            self._entries = {name: known[name] for name in self._entries if name in known}
