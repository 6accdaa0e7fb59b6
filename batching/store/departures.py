"""Requests that nobody waits for any more are cancelled, those that leave together in one call."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from redis.exceptions import RedisError

from batching.store.ingress_verbs import CancelCode, IngressVerbs
from batching.store.tasks import end_tasks
from batching.store.ticket import Ticket

CANCEL_AT_ONCE = 256
CANCEL_PATIENCE_S = 0.1  # an answer is due at the deadline, whether or not Redis answers


class Departures:
    """Cancels requests, then fails their tickets; a reply that came first is delivered instead."""

    def __init__(
        self, verbs: IngressVerbs, deliver: Callable[[Mapping[str, bytes | None]], object]
    ) -> None:
        self._verbs = verbs
        self._deliver = deliver
        self._leaving: list[tuple[Ticket, Exception]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_collecting = False

    def add(self, ticket: Ticket, error: Exception) -> None:
        """The request will be cancelled at once, and its ticket fails with `error`."""
        self._leaving.append((ticket, error))
        if not self._is_collecting:
            self._is_collecting = True
            # In the loop's next turn: when hundreds leave at once, a call for each is too slow.
            asyncio.get_running_loop().call_soon(self._cancel)

    async def close(self) -> None:
        """Nothing is under way any more; what was not cancelled expires."""
        await end_tasks(self._tasks)

    def _cancel(self) -> None:
        self._is_collecting = False
        leaving, self._leaving = self._leaving, []
        for start in range(0, len(leaving), CANCEL_AT_ONCE):
            task = asyncio.ensure_future(self._let_go(leaving[start : start + CANCEL_AT_ONCE]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _let_go(self, leaving: Sequence[tuple[Ticket, Exception]]) -> None:
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CANCEL_PATIENCE_S):
                await self._cancel_together([ticket.request_id for ticket, _ in leaving])
        for ticket, error in leaving:
            ticket.fail(error)

    async def _cancel_together(self, request_ids: Sequence[str]) -> None:
        codes = zip(request_ids, await self._verbs.cancel(request_ids), strict=True)
        replied = [request_id for request_id, code in codes if code is CancelCode.REPLIED]
        if replied:
            self._deliver(await self._verbs.fetch(replied))
