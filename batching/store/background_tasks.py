"""Keeps background tasks going, and ends them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from batching.errors import ServeError
from batching.process.retries import Reminder

log = logging.getLogger(__name__)

ONCE_MORE_S = 0.05
RECOVERY_S = 0.5


async def keep_going(
    body: Callable[[], Coroutine[None, None, None]],
    whose: str,
    *,
    recovery_s: float = RECOVERY_S,
    failure: Exception | None = None,
) -> None:
    """Runs the body to its end; after an exception that it did not foresee, it begins anew.

    For tasks that are not awaited: one that an exception ends would be missed in silence. An
    exception that comes at each try is logged now and then. `failure` is that of a first try.
    """
    reminder = Reminder()
    while True:
        if failure is not None:
            if reminder.is_due(repr(failure)):
                accident = None if isinstance(failure, ServeError) else failure
                text = "task failed name=%s %s: %s"
                log.error(text, body.__name__, whose, failure, exc_info=accident)
            await asyncio.sleep(recovery_s)
        try:
            return await body()
        except Exception as error:
            failure = error


class BackgroundTasks:
    """Keeps tasks that are not awaited until they end: asyncio itself does not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    def start(self, body: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await end_tasks(self._tasks)


async def end_tasks(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancels these tasks until they have ended.

    Once is not enough: on Python 3.11 the `wait_for` inside redis-py swallows a cancellation that
    comes together with the result it waits for, and the task would go on for ever.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=ONCE_MORE_S)
