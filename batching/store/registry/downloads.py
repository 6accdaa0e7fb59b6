"""The progress of downloads of archives: a node notes it, an ingress reads it."""

import contextlib
from dataclasses import dataclass

from batching.store import keys
from batching.store.client_types import Client
from batching.store.records import RecordReader
from batching.store.redis_errors import AWAY, telling_unavailable

_TTL_S = 60


@dataclass(frozen=True, slots=True)
class Download:
    """An archive on its way into a model store. `total_bytes` is 0 when the sender does not say."""

    url: str
    done_bytes: int
    total_bytes: int


class Downloads:
    """Keeps the downloads that are under way on any node."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._records = RecordReader("download", _progress)

    def note(self, download: Download) -> None:
        """Notes the download's progress; an error of Redis is ignored, as no work depends on it."""
        progress = f"{download.done_bytes}/{download.total_bytes}"
        with contextlib.suppress(*AWAY), self._client.pipeline(transaction=False) as pipe:
            pipe.hset(keys.DOWNLOADS, download.url, progress)
            pipe.expire(keys.DOWNLOADS, _TTL_S)
            pipe.execute()

    def forget(self, url: str) -> None:
        with contextlib.suppress(*AWAY):
            self._client.hdel(keys.DOWNLOADS, url)

    def all(self) -> list[Download]:
        """Returns the downloads under way, sorted by URL.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        with telling_unavailable():
            records = self._client.hgetall(keys.DOWNLOADS)
        found = self._records.read(records)
        return [Download(url, *progress) for url, progress in sorted(found.items())]


def _progress(text: bytes) -> tuple[int, int]:
    done, _, total = text.partition(b"/")
    return int(done), int(total)
