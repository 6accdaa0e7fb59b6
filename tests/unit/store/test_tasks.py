import asyncio

from batching.store.tasks import end_tasks


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
