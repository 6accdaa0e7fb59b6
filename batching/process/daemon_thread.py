"""Runs blocking work beside an event loop, in threads that a stopping process does not wait for."""

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from batching.errors import NoThread
from batching.process.child_process import PROCESS_LIMIT_ADVICE

T = TypeVar("T")

_NO_THREAD = f"No thread can be started: {PROCESS_LIMIT_ADVICE}."


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Returns what `work` returns or raises in a thread of its own.

    An executor would not do. The interpreter joins its threads at exit, so a download, or a
    registration that waits two minutes for its workers, would keep a stopped process alive. And it
    has few threads, all of which slow work would take.

    Raises:
        NoThread: no thread can be started.
    """
    outcome, run = _piece(work)
    _start(run, "blocking work")
    return await outcome


class DaemonThread:
    """Runs blocking work in one thread, in order.

    Started early, it works even when the system refuses to start further threads.
    """

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Starts the thread."""
        _start(self._work, "blocking pieces")

    async def run(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns or raises; earlier work is done first."""
        outcome, run = _piece(work)
        self._pieces.put(run)
        return await outcome

    def end(self) -> None:
        """Lets the thread end after its last work; does not wait for that."""
        self._pieces.put(None)

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            piece()


def _start(run: Callable[[], None], name: str) -> None:
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(_NO_THREAD, retry_after_s=1.0) from error


def _piece(work: Callable[[], T]) -> tuple[asyncio.Future[T], Callable[[], None]]:
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()  # the work is done even if its caller is cancelled

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # it crosses to the waiting coroutine
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    return asyncio.wrap_future(outcome), run
