"""What is published of a slot: its worker's state, and whether requests can count on it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from batching.models.spec import VersionKey
from batching.models.statuses import WorkerState, WorkerStatus
from batching.process.retries import Backoff
from batching.store.node_queue import NodeQueue
from batching.store.redis_errors import AWAY, OutageLog

RETRY_S = 0.1


class SlotRecord:
    """Keeps the status of one slot's worker in Redis, under the worker's name.

    Only a worker that serves, or can be counted on to serve soon, is listed as alive. Others are
    hidden: their status can be seen, but no request is queued for them.
    """

    def __init__(
        self, queue: NodeQueue, outage: OutageLog, key: VersionKey, backoff: Backoff
    ) -> None:
        self.key = key
        self.status: WorkerStatus | None = None
        self.successor_id: str | None = None
        self._queue = queue
        self._outage = outage
        self._backoff = backoff

    @property
    def worker_id(self) -> str | None:
        return self.status.worker_id if self.status else None

    @property
    def state(self) -> WorkerState:
        return self.status.state if self.status else WorkerState.STARTING

    @property
    def is_expected(self) -> bool:
        """Returns whether it serves now or can be counted on to serve soon: requests may queue."""
        is_coming = self.state in (WorkerState.STARTING, WorkerState.LOADING)
        return self.state is WorkerState.READY or (is_coming and not self._backoff.is_doubtful)

    async def begin(self, status: WorkerStatus) -> None:
        """Puts a new worker in the place of the former one.

        Lists it as alive before the former one is forgotten, so that one of them always is.
        """
        previous_id, self.status = self.worker_id, status
        self.successor_id = None
        await self.beat(status.worker_id)
        await self.set_state(status.state)
        if previous_id is not None:
            await self.retry(self._queue.forget, self.key, previous_id)

    async def set_state(self, state: WorkerState, **changes: Any) -> None:
        assert self.status is not None
        self.status = replace(self.status, state=state, **changes)
        await self.retry(self._queue.report, self.key, self.status)
        if not self.is_expected:
            for worker_id in self._worker_ids():
                await self.retry(self._queue.hide, self.key, worker_id)

    async def expect(self, successor_id: str) -> None:
        """Lists the slot's next worker as alive, beside the current one, before it begins.

        A state in which it is not expected hides both.
        """
        self.successor_id = successor_id
        await self.beat(successor_id)

    async def beat(self, worker_id: str) -> None:
        """Lists the worker as alive, unless the slot has been given up."""
        if self.is_expected:
            await self.retry(self._queue.beat, {self.key: [worker_id]})

    async def report_again(self, **changes: Any) -> None:
        """Publishes the state once more, with these changes; raises if Redis does not answer."""
        if self.status is None:
            return
        status = self.status = replace(self.status, **changes)
        await self._queue.report(self.key, status)
        if self.worker_id != status.worker_id:  # it has ended, and been forgotten, meanwhile
            await self._queue.forget(self.key, status.worker_id)

    async def end(self) -> None:
        last_ids, self.status = self._worker_ids(), None
        for worker_id in last_ids:
            await self.retry(self._queue.forget, self.key, worker_id)

    async def retry(self, verb: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Returns the verb's result, once Redis answers; only for those that may be repeated."""
        name = getattr(verb, "__name__", str(verb))
        while True:
            try:
                result = await verb(*arguments)
            except AWAY as error:
                self._outage.note(name, error)
                await asyncio.sleep(RETRY_S)
            else:
                self._outage.over(name)
                return result

    def _worker_ids(self) -> list[str]:
        return [worker_id for worker_id in (self.worker_id, self.successor_id) if worker_id]
