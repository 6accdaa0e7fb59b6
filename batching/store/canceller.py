"""Cancels requests whose deadline has passed or whose client has left, many in one call.

What Redis did not hear is said again until the request's deadline: once Redis is back, whatever
waits in it is run.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from batching.store.background_tasks import BackgroundTasks
from batching.store.ingress_queue import CancelCode, IngressQueue
from batching.store.patience import Patience
from batching.store.pending_request import PendingRequest
from batching.store.redis_errors import AWAY

CANCEL_AT_ONCE = 256
AGAIN_S = 0.2  # no claim gets a request that was given up 0.3 s before, after an outage either


@dataclass(slots=True)
class _Cancellation:
    request_id: str
    deadline: float
    fail: Callable[[], None] | None


class Canceller:
    """Cancels requests, then fails them, unless a reply came first, which is delivered."""

    def __init__(
        self,
        queue: IngressQueue,
        deliver: Callable[[Mapping[str, bytes | None]], object],
        fail: Callable[[PendingRequest, Exception], None],
        patience: Patience,
    ) -> None:
        self._queue = queue
        self._deliver = deliver
        self._fail = fail
        self._patience = patience
        self._leaving: list[_Cancellation] = []
        self._tasks = BackgroundTasks()
        self._is_cancelling = False
        self._loop = asyncio.get_running_loop()

    @property
    def is_busy(self) -> bool:
        """Returns whether requests are being cancelled."""
        return self._tasks.is_busy

    def cancel(self, request: PendingRequest, error: Exception) -> None:
        """Cancels the request and fails it, soon even when Redis does not answer."""
        fail = partial(self._fail, request, error)
        self._leaving.append(_Cancellation(request.request_id, request.deadline, fail))
        self._loop.call_later(self._patience.cancel_s, fail)
        if not self._is_cancelling:
            self._is_cancelling = True
            self._tasks.start(self._cancel_all())

    async def close(self) -> None:
        """Ends all calls under way; requests that were not cancelled expire."""
        await self._tasks.close()

    async def _cancel_all(self) -> None:
        """Makes one call at a time: when hundreds of clients leave, a call for each is too slow.

        It goes on after the clients have been told. A call that is broken off may not have been
        sent yet, and takes its connection along, so that the next one would be as late.
        """
        try:
            while self._leaving:
                await asyncio.sleep(0)  # those that leave in the same turn of the loop go along
                leaving = self._leaving[:CANCEL_AT_ONCE]
                del self._leaving[:CANCEL_AT_ONCE]
                is_heard = await self._try_to_cancel([one.request_id for one in leaving])
                for one in leaving:
                    if one.fail is not None:
                        one.fail()
                    # An outage may be long, and the error's traceback holds the request's body.
                    one.fail = None
                if not is_heard:
                    self._leaving += [one for one in leaving if one.deadline > self._loop.time()]
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._is_cancelling = False

    async def _try_to_cancel(self, request_ids: Sequence[str]) -> bool:
        """Returns whether Redis was heard."""
        try:
            codes = zip(request_ids, await self._queue.cancel(request_ids), strict=True)
            replied = [request_id for request_id, code in codes if code is CancelCode.REPLIED]
            if replied:
                self._deliver(await self._queue.fetch(replied))
        except AWAY:
            return False
        return True
