import asyncio

from batching.store.tasks import BackgroundTasks, end_tasks
from tests.support import eventually_async


def test_end_tasks_ends_a_task_that_swallows_its_first_cancellation():
    async def run():
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

    asyncio.run(run())


def test_end_tasks_has_nothing_to_do_without_tasks():
    asyncio.run(end_tasks([]))


def test_background_tasks_are_busy_until_the_last_has_ended():
    async def run():
        # Given
        tasks, first, last = BackgroundTasks(), asyncio.Event(), asyncio.Event()
        assert not tasks.is_busy
        for event in (first, last):
            tasks.start(event.wait())

        # When
        first.set()
        await asyncio.sleep(0)

        # Then
        assert tasks.is_busy
        last.set()
        await eventually_async(lambda: not tasks.is_busy)

    asyncio.run(run())


def test_background_tasks_have_ended_when_they_are_closed():
    async def run():
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

    asyncio.run(run())
