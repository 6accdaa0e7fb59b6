"""Blocking work beside an event loop, in threads that a stopping process does not wait for."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from batching.errors import NoThread
from batching.process.child_process import PROCESS_LIMIT_ADVICE

T = TypeVar("T")

_NO_THREAD = f"No thread can be started: {PROCESS_LIMIT_ADVICE}."


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Returns what `work` returns or raises in a thread of its own.

    Not an executor: the interpreter joins an executor's threads at exit, and a registration that
    waits two minutes for its workers, or a download, would keep a stopped process alive. Nor do
    they wait for each other: an executor has few threads, and slow work would take them all.

    Raises:
        NoThread: none can be started.
    """
    outcome, run = _piece(work)
    _start(run, "blocking work")
    return await outcome


class DaemonThread:
    """One thread for blocking work, a piece after the other.

    Started early, it still works when the system refuses to start further threads.
    """

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Starts the thread, which waits for work.

        Raises:
            NoThread: it cannot be started.
        """
        _start(self._work, "blocking pieces")

    async def run(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns or raises, when all before it has been done."""
        outcome, run = _piece(work)
        self._pieces.put(run)
        return await outcome

    def end(self) -> None:
        """Lets the thread end after its last work, without waiting for that."""
        self._pieces.put(None)

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            piece()


def _start(run: Callable[[], None], name: str) -> None:
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(_NO_THREAD, retry_after_s=1.0) from error


def _piece(work: Callable[[], T]) -> "tuple[asyncio.Future[T], Callable[[], None]]":
    """A future for the outcome of the work, and the function that does the work in a thread."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: object) -> None:
        if not outcome.done():
            set_outcome(value)

    def report(set_outcome: Callable[[Any], None], value: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(settle, set_outcome, value)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # it crosses to the waiting coroutine
            report(outcome.set_exception, error)
        else:
            report(outcome.set_result, result)

    return outcome, run
