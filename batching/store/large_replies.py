"""Fetches replies that are too large for the replies list, a few at a time."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice

from batching.store.background_tasks import end_tasks
from batching.store.ingress_queue import IngressQueue
from batching.store.redis_errors import AWAY

AT_ONCE = 8  # replies of megabytes each must not come in one piece


class LargeReplyFetcher:
    """Fetches the large replies of one channel; its audit names again what could not be fetched.

    Each reply is on its way once only, however often the audit names it meanwhile: copies that
    share a slow line delay each other until none arrives in time.
    """

    def __init__(
        self,
        queue: IngressQueue,
        is_wanted: Callable[[str], bool],
        deliver: Callable[[Mapping[str, memoryview | None]], object],
    ) -> None:
        self._queue = queue
        self._is_wanted = is_wanted
        self._deliver = deliver
        self._due: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def add(self, request_id: str, attempt: str) -> None:
        """Fetches and delivers the reply of this attempt later, then deletes it."""
        self._due.setdefault(request_id, attempt)
        if not self.is_busy:
            self._task = asyncio.get_running_loop().create_task(self._fetch())

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])

    async def _fetch(self) -> None:
        at_once = AT_ONCE
        read: dict[str, str] = {}  # and delivered: deleted together with the next fetch
        try:
            while self._due or read:
                some = dict(islice(self._due.items(), at_once))
                wanted = {one: some[one] for one in some if self._is_wanted(one)}
                values: Mapping[str, memoryview | None] = {}
                try:
                    if wanted or read:
                        values = await self._queue.fetch_large(wanted, read)
                except AWAY:
                    if at_once == 1:
                        return
                    at_once = 1  # together they may have been too large for the time of one call
                    continue
                for request_id in some:
                    del self._due[request_id]
                self._deliver(values)
                read = some
        finally:
            self._due.clear()
