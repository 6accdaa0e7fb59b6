"""Stores replies that are too large for a script, a few megabytes at a time."""

from collections.abc import Iterable, Iterator, Sequence

from redis.exceptions import OutOfMemoryError

from batching.protocol import INLINE_LIMIT_BYTES, Owned
from batching.store.client_types import Client
from batching.store.keys import REPLY_TTL_MS

# So much is written at once of a batch's large replies, as each is copied on the way.
WRITE_BYTES = 4 * 1024 * 1024


class LargeReplyWriter:
    """Writes a worker's large replies; raises redis' own errors, and may be called again."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def store(self, items: Sequence[Owned], values: Sequence[bytes]) -> set[Owned]:
        """Stores the replies that are too large for a script; returns the items they belong to."""
        stored: set[Owned] = set()
        large = [
            pair for pair in zip(items, values, strict=True) if len(pair[1]) > INLINE_LIMIT_BYTES
        ]
        for some in _in_writes(large):
            with self._client.pipeline(transaction=False) as pipe:
                for item, value in some:
                    # The attempt is part of the name, so a stale worker cannot overwrite a newer
                    # answer.
                    name = f"{self._prefix}{item.request_id}:{item.attempt}"
                    pipe.set(name, value, px=REPLY_TTL_MS)
                results = pipe.execute(raise_on_error=False)
            for (item, _), result in zip(some, results, strict=True):
                if not isinstance(result, Exception):
                    stored.add(item)
                elif not isinstance(result, OutOfMemoryError):
                    raise result
                # At maxmemory the script may store what a plain SET may not: it frees the request
                # first.
        return stored


def _in_writes(
    replies: Iterable[tuple[Owned, bytes]],
) -> Iterator[list[tuple[Owned, bytes]]]:
    """Yields the replies in groups, each of which passes WRITE_BYTES by its last reply only."""
    group: list[tuple[Owned, bytes]] = []
    size_bytes = 0
    for reply in replies:
        group.append(reply)
        size_bytes += len(reply[1])
        if size_bytes > WRITE_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group
