"""Runs blocking work beside an event loop, in threads that a stopping process does not wait for."""

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from batching.errors import NoThread
from batching.process.child_process import PROCESS_LIMIT_ADVICE

T = TypeVar("T")
Outcome = concurrent.futures.Future[Any]


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Returns what `work` returns or raises in a thread of its own; raises NoThread without one.

    The interpreter joins an executor's threads at exit: a download, or a registration that waits
    two minutes for its workers, would keep a stopped process alive. And slow work would occupy all
    of its few threads.
    """
    thread = DaemonThread()
    thread.start()
    outcome = thread.run(work)
    thread.end()
    return await outcome


class DaemonThread:
    """Runs blocking work in one thread, in order, even where no other thread can start."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Outcome] | None]
        self._work = queue.SimpleQueue()

    def start(self) -> None:
        """Starts the thread, or raises NoThread."""
        try:
            threading.Thread(target=self._work_on, name="blocking work", daemon=True).start()
        except RuntimeError as error:
            message = f"No thread can be started: {PROCESS_LIMIT_ADVICE}."
            raise NoThread(message, retry_after_s=1.0) from error

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Runs the work after earlier work, even if its caller is cancelled."""
        outcome: Outcome = concurrent.futures.Future()
        outcome.set_running_or_notify_cancel()
        self._work.put((work, outcome))
        return asyncio.wrap_future(outcome)

    def end(self) -> None:
        """Lets the thread end after its last work; does not wait for that."""
        self._work.put(None)

    def _work_on(self) -> None:
        while (piece := self._work.get()) is not None:
            work, outcome = piece
            try:
                outcome.set_result(work())
            except BaseException as error:  # it crosses to the waiting coroutine
                outcome.set_exception(error)
            del piece, work, outcome
