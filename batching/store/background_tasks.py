"""How background tasks go on, and how they end."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from batching.errors import ServeError
from batching.process.reminder import Reminder

log = logging.getLogger(__name__)

ONCE_MORE_S = 0.05
RECOVERY_S = 0.5


async def keep_going(
    body: Callable[[], Coroutine[None, None, None]], whose: str, *, recovery_s: float = RECOVERY_S
) -> None:
    """Runs this to its end; what it did not foresee is logged, and it begins anew.

    For tasks that nobody awaits: one that an exception has ended would be missed in silence. An
    exception that comes at each try is logged now and then.
    """
    reminder = Reminder()
    while True:
        try:
            return await body()
        except Exception as error:
            if reminder.is_due(repr(error)):
                is_accident = not isinstance(error, ServeError)
                text = "task failed name=%s %s: %s"
                log.error(text, body.__name__, whose, error, exc_info=is_accident)
            await asyncio.sleep(recovery_s)


class BackgroundTasks:
    """Tasks that nobody awaits. They are kept here until they end: asyncio itself does not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Returns whether any of them is under way."""
        return bool(self._tasks)

    def start(self, body: Coroutine[None, None, None]) -> None:
        """Runs the coroutine as a task."""
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """All that were under way have ended."""
        await end_tasks(self._tasks)


async def end_tasks(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """All of these tasks have ended, in spite of what happens to cancellations on the way.

    They are cancelled until they have: on Python 3.11 the `wait_for` inside redis-py swallows a
    cancellation that comes together with the result it waits for, and a task that is cancelled once
    would then go on for ever.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=ONCE_MORE_S)
