"""Remembers the startup models that were registered once: a restart brings none of them back."""

from batching.store import keys
from batching.store.client_types import Client
from batching.store.unavailable import telling_unavailable


class StartupMarks:
    """Keeps the marks in Redis, as long as it keeps the models.

    Both methods raise StoreUnavailable when Redis does not answer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def has(self, entry: str) -> bool:
        """Returns whether this entry of `load_models`, or snapshot, was registered before."""
        with telling_unavailable():
            return bool(self._client.hexists(keys.STARTED, entry))

    def add(self, entry: str) -> None:
        with telling_unavailable():
            self._client.hset(keys.STARTED, entry, 1)
