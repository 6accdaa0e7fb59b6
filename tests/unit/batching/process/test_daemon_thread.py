"""Blocking work of an event loop: what it brings, and that a stop does not wait for it."""

import asyncio
import threading

import pytest

from batching.errors import NoThread
from batching.process.daemon_thread import DaemonThread, in_daemon_thread
from tests.support import eventually


def fail():
    raise KeyError("mine")


async def test_what_work_returns_or_raises_comes_back():
    assert (await in_daemon_thread(threading.current_thread)).daemon
    with pytest.raises(KeyError, match="mine"):
        await in_daemon_thread(fail)


@pytest.fixture
def no_more_threads():
    """To be called; from then on no thread can be started."""
    before = threading.stack_size()
    yield lambda: threading.stack_size(2**46)  # more than any system has
    threading.stack_size(before)


async def test_work_that_gets_no_thread_says_what_to_raise(no_more_threads):
    no_more_threads()
    with pytest.raises(NoThread, match="raise this server's limit of processes"):
        await in_daemon_thread(threading.current_thread)


async def test_thread_that_is_there_works_when_no_other_can_be_started(no_more_threads):
    # Given
    thread = DaemonThread()
    thread.start()
    no_more_threads()
    # When / Then
    first, second = [await thread.run(threading.current_thread) for _ in range(2)]
    assert first is second
    with pytest.raises(KeyError, match="mine"):
        await thread.run(fail)
    assert await thread.run(lambda: 7) == 7
    # When
    thread.end()
    # Then
    first.join(5)
    assert not first.is_alive()


@pytest.mark.parametrize("outcome", [None, KeyError("late")], ids=["returns", "raises"])
def test_work_that_outlives_its_loop_ends_in_silence(outcome):
    # Given
    may_end = threading.Event()
    threads = []

    def work():
        threads.append(threading.current_thread())
        may_end.wait(10)
        if outcome is not None:
            raise outcome

    async def run():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_daemon_thread(work), 0.05)

    # When the loop ends before the work does
    asyncio.run(run())
    may_end.set()

    # Then: an exception in the thread would fail this test
    eventually(lambda: threads and not threads[0].is_alive(), 5)
