"""Ends background tasks, in spite of what happens to cancellations on the way."""

import asyncio
from collections.abc import Iterable
from typing import Any

ONCE_MORE_S = 0.05


async def end_tasks(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """All of these tasks have ended.

    They are cancelled until they have: on Python 3.11 the `wait_for` inside redis-py swallows a
    cancellation that comes together with the result it waits for, and a task that is cancelled once
    would then go on for ever.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=ONCE_MORE_S)
