"""Requests that nobody waits for any more are cancelled, those that leave together in one call.

Nobody waits where the deadline has passed or the client has left. What Redis did not hear is said
again until the request's deadline, as what waits is run once Redis is back.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from batching import errors
from batching.store.background_tasks import BackgroundTasks
from batching.store.ingress_side.ingress_queue import CancelCode, IngressQueue
from batching.store.ingress_side.pending_request import ClientGone, ClientLeft, PendingRequest
from batching.store.redis_errors import AWAY

WATCH_AFTER_S = 0.1  # fast requests do not pay for watching their client
CANCEL_AT_ONCE = 256
AGAIN_S = 0.2  # no claim has what was given up 0.3 s before it, after an outage either
CANCEL_PATIENCE_S = 0.06  # an answer is due 0.1 s after the deadline, if Redis answers or not


@dataclass(slots=True)
class _Cancellation:
    request_id: str
    deadline: float
    fail: Callable[[], None] | None


class Canceller:
    """Cancels requests, then fails their waiters; a reply that came first is delivered instead."""

    def __init__(
        self, verbs: IngressQueue, deliver: Callable[[Mapping[str, bytes | None]], object]
    ) -> None:
        self._verbs = verbs
        self._deliver = deliver
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

    def watch(self, waiter: PendingRequest, client_left: ClientGone | None) -> None:
        """Gives up the request at its deadline, or once `client_left` finishes.

        Most are answered before they need a timer of their own: those that come within a tenth of
        a second share one.
        """
        if waiter.timeout_s <= WATCH_AFTER_S:
            self._set_timer(waiter, waiter.timeout_s, client_left)
            return
        if not self._is_to_look:
            self._is_to_look = True
            self._loop.call_later(WATCH_AFTER_S, self._look)
        self._fresh[waiter] = client_left

    def unwatch(self, waiter: PendingRequest) -> None:
        """It has its outcome: nothing waits for its deadline, or keeps its reply."""
        self._fresh.pop(waiter, None)
        if waiter.timer is not None:
            waiter.timer.cancel()

    def give_up(self, waiter: PendingRequest, error: Exception) -> None:
        """As `cancel`, unless there is an outcome already."""
        if not waiter.reply.done():
            self.cancel(waiter, error)

    def cancel(self, waiter: PendingRequest, error: Exception) -> None:
        """Cancels the request and fails it, within CANCEL_PATIENCE_S in any case."""
        fail = partial(waiter.fail, error)
        self._leaving.append(_Cancellation(waiter.request_id, waiter.deadline, fail))
        self._loop.call_later(CANCEL_PATIENCE_S, fail)
        if not self._is_cancelling:
            self._is_cancelling = True
            self._tasks.start(self._cancel_all())

    async def close(self) -> None:
        """Nothing is under way any more; what was not cancelled expires."""
        await self._tasks.close()

    def _look(self) -> None:
        self._is_to_look = False
        fresh, self._fresh = self._fresh, {}
        for waiter, client_left in fresh.items():
            if not waiter.reply.done():
                self._on_timer(waiter, client_left)

    def _set_timer(
        self, waiter: PendingRequest, after_s: float, client_left: ClientGone | None
    ) -> None:
        waiter.timer = self._loop.call_later(after_s, self._on_timer, waiter, client_left)

    def _on_timer(self, waiter: PendingRequest, client_left: ClientGone | None) -> None:
        left_s = waiter.deadline - self._loop.time()
        if left_s > 0:
            self._set_timer(waiter, left_s, None)
            if client_left is not None and not waiter.reply.done():
                self._tasks.start(self._follow(waiter, client_left))
        else:
            text = "The request's deadline passed before its answer was there."
            self.give_up(waiter, errors.DeadlineExceeded(text))

    async def _follow(self, waiter: PendingRequest, client_left: ClientGone) -> None:
        gone = asyncio.ensure_future(client_left())
        outcomes: set[asyncio.Future[Any]] = {gone, waiter.reply}
        try:
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        self.give_up(waiter, ClientLeft())

    async def _cancel_all(self) -> None:
        """One call at a time for all who have left: when hundreds leave, one for each is too slow.

        It goes on when nobody waits for it any more. A call that is broken off may not have been
        sent yet, and takes its connection along, so that the next one would be as late.
        """
        try:
            while self._leaving:
                await asyncio.sleep(0)  # those who leave in the same turn of the loop go along
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
            codes = zip(request_ids, await self._verbs.cancel(request_ids), strict=True)
            replied = [request_id for request_id, code in codes if code is CancelCode.REPLIED]
            if replied:
                self._deliver(await self._verbs.fetch(replied))
        except AWAY:
            return False
        return True
