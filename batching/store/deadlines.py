"""One timer for the deadlines of all requests of a channel."""

import asyncio
import math
from collections.abc import Callable, Mapping

from batching.store.pending_request import PendingRequest

# Many deadlines that pass one after the other cost one look in this time.
LOOK_AGAIN_S = 0.01


class Deadlines:
    """Reports requests whose deadline has passed.

    Most are answered long before. So the timer is set for the earliest deadline of those that wait
    when it is set, and not set anew with each answer. `due_at` is when it looks next, in the event
    loop's time.
    """

    def __init__(
        self, waiting: Mapping[str, PendingRequest], on_late: Callable[[PendingRequest], None]
    ) -> None:
        self._waiting = waiting
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.due_at = math.inf

    def set(self, deadline: float) -> None:
        """Sets the timer for a request that waits, whose deadline is earlier than `due_at`."""
        self.close()
        self.due_at = deadline
        self._timer = self._loop.call_at(deadline, self._look)

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self.due_at, late = math.inf, []
        for request in self._waiting.values():
            if request.deadline > now:
                self.due_at = min(self.due_at, request.deadline)
            elif not request.is_late:
                request.is_late = True
                late.append(request)
        if self.due_at < math.inf:
            self.due_at = max(self.due_at, now + LOOK_AGAIN_S)
            self._timer = self._loop.call_at(self.due_at, self._look)
        for request in late:
            self._on_late(request)
