"""Cancels requests whose deadline has passed or whose client has left, many in one call.

What Redis did not hear is said again until the request's deadline: once Redis is back, whatever
waits in it is run.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from batching import errors
from batching.store.background_tasks import BackgroundTasks
from batching.store.ingress_side.ingress_queue import CancelCode, IngressQueue
from batching.store.ingress_side.patience import Patience
from batching.store.ingress_side.pending_request import ClientGone, ClientLeft, PendingRequest
from batching.store.redis_errors import AWAY

CANCEL_AT_ONCE = 256
AGAIN_S = 0.2  # no claim gets a request that was given up 0.3 s before, after an outage either


@dataclass(slots=True)
class _Cancellation:
    request_id: str
    deadline: float
    fail: Callable[[], None] | None


class Canceller:
    """Cancels requests, then fails them; a reply that came first is delivered instead."""

    def __init__(
        self,
        queue: IngressQueue,
        deliver: Callable[[Mapping[str, bytes | None]], object],
        patience: Patience,
    ) -> None:
        self._queue = queue
        self._deliver = deliver
        self._patience = patience
        self._fresh: dict[PendingRequest, ClientGone | None] = {}
        self._is_to_look = False
        self._leaving: list[_Cancellation] = []
        self._tasks = BackgroundTasks()
        self._is_cancelling = False
        self._loop = asyncio.get_running_loop()

    @property
    def is_busy(self) -> bool:
        """Returns whether clients are being watched or requests cancelled."""
        return self._tasks.is_busy

    def watch(self, request: PendingRequest, client_left: ClientGone | None) -> None:
        """Gives up the request at its deadline, or once `client_left` finishes.

        Most are answered before they need a timer of their own: those that come within a tenth of
        a second share one.
        """
        if request.timeout_s <= self._patience.watch_s:
            self._set_timer(request, request.timeout_s, client_left)
            return
        if not self._is_to_look:
            self._is_to_look = True
            self._loop.call_later(self._patience.watch_s, self._look)
        self._fresh[request] = client_left

    def unwatch(self, request: PendingRequest) -> None:
        """Forgets a request that has its outcome: its reply is not kept until the deadline."""
        self._fresh.pop(request, None)
        if request.timer is not None:
            request.timer.cancel()

    def give_up(self, request: PendingRequest, error: Exception) -> None:
        """Cancels and fails the request unless it has an outcome already."""
        if not request.reply.done():
            self.cancel(request, error)

    def cancel(self, request: PendingRequest, error: Exception) -> None:
        """Cancels the request and fails it, soon even when Redis does not answer."""
        fail = partial(request.fail, error)
        self._leaving.append(_Cancellation(request.request_id, request.deadline, fail))
        self._loop.call_later(self._patience.cancel_s, fail)
        if not self._is_cancelling:
            self._is_cancelling = True
            self._tasks.start(self._cancel_all())

    async def close(self) -> None:
        """Ends all calls under way; requests that were not cancelled expire."""
        await self._tasks.close()

    def _look(self) -> None:
        self._is_to_look = False
        fresh, self._fresh = self._fresh, {}
        for request, client_left in fresh.items():
            if not request.reply.done():
                self._on_timer(request, client_left)

    def _set_timer(
        self, request: PendingRequest, after_s: float, client_left: ClientGone | None
    ) -> None:
        request.timer = self._loop.call_later(after_s, self._on_timer, request, client_left)

    def _on_timer(self, request: PendingRequest, client_left: ClientGone | None) -> None:
        left_s = request.deadline - self._loop.time()
        if left_s > 0:
            self._set_timer(request, left_s, None)
            if client_left is not None and not request.reply.done():
                self._tasks.start(self._follow(request, client_left))
        else:
            text = "The request's deadline passed before its answer was there."
            self.give_up(request, errors.DeadlineExceeded(text))

    async def _follow(self, request: PendingRequest, client_left: ClientGone) -> None:
        gone = asyncio.ensure_future(client_left())
        outcomes: set[asyncio.Future[Any]] = {gone, request.reply}
        try:
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        self.give_up(request, ClientLeft())

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
