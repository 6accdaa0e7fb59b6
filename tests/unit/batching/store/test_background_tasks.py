import asyncio

import pytest

from batching.errors import NoThread
from batching.store.background_tasks import BackgroundTasks, end_tasks, keep_going
from tests.support import eventually_async


async def test_end_tasks_ends_a_task_that_swallows_its_first_cancellation():
    # Given
    swallowed = []

    async def stubborn():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if swallowed:
                    raise
                swallowed.append(True)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)

    # When
    await asyncio.wait_for(end_tasks([task]), 1.0)

    # Then
    assert swallowed
    assert task.cancelled()


async def test_background_tasks_have_ended_when_they_are_closed():
    # Given
    tasks, ended = BackgroundTasks(), []

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    tasks.start(wait())
    await asyncio.sleep(0)

    # When
    await tasks.close()

    # Then
    assert ended
    assert not tasks.is_busy


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(KeyError("mine"), True), (NoThread("Raise it."), False)]
)
async def test_task_that_fails_at_each_try_says_so_once(caplog, error, has_traceback):
    tries = 0

    async def fail():
        nonlocal tries
        tries += 1
        raise error

    going = asyncio.create_task(keep_going(fail, "of a test", recovery_s=0.001))
    # When
    await eventually_async(lambda: tries > 10)
    await end_tasks([going])
    # Then
    assert caplog.messages == [f"task failed name=fail of a test: {error}"]
    assert ("Traceback" in caplog.text) == has_traceback
