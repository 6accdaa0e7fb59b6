"""Which startup models have been registered once, so that a restart brings none of them back."""

from batching.store import keys
from batching.store.client_types import Client
from batching.store.unavailable import telling_unavailable


class StartupMarks:
    """What Redis remembers of `load_models` and of snapshots, while it remembers the models."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def has(self, entry: str) -> bool:
        """Returns whether this entry of `load_models`, or snapshot, was registered before.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        with telling_unavailable():
            return bool(self._client.hexists(keys.STARTED, entry))

    def add(self, entry: str) -> None:
        """This entry is remembered as registered.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        with telling_unavailable():
            self._client.hset(keys.STARTED, entry, 1)
