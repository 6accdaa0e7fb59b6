"""The processes of a node that run control jobs: none while no job waits."""

import asyncio
import contextlib
import errno
import os

import psutil
import pytest

from batching.errors import ModelNotFound
from batching.settings.settings import Settings
from batching.store.clients import connect, connect_async
from batching.store.node_queue import NodeQueue
from batching.store.registry.control_queue import ControlQueue
from tests.support import eventually_async, make_outage
from workers.node import node
from workers.node.node import ControlProcesses


@contextlib.asynccontextmanager
async def running(settings, count_waiting):
    processes = ControlProcesses(settings, count_waiting, make_outage())
    task = asyncio.create_task(processes.run())
    try:
        yield processes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_node_goes_on_while_its_system_starts_no_process(monkeypatch, caplog):
    # Given
    starts = []

    def spawn(*_):
        starts.append(len(starts))
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def count_waiting():
        return 1

    monkeypatch.setattr(node, "spawn", spawn)
    monkeypatch.setattr(node, "CONTROL_PATIENCE_S", 0.01)
    # When
    async with running(Settings(), count_waiting) as processes:
        processes.must_look.set()
        # Then it is tried again
        await eventually_async(lambda: len(starts) > 5)
    # And said once
    [line] = [one for one in caplog.messages if one.startswith("cannot run workers.control_jobs: ")]
    assert line.endswith(os.strerror(errno.EAGAIN))


@pytest.mark.long  # processes that import RQ
async def test_jobs_have_a_process_and_a_second_one_while_the_first_is_at_a_long_one(
    redis_server, monkeypatch
):
    # Given
    monkeypatch.setattr(node, "CONTROL_LOOK_S", 0.1)
    client = connect(redis_server.url)
    client.flushall()
    others = set(psutil.Process().children())

    def own():
        return set(psutil.Process().children()) - others

    async with connect_async(redis_server.url) as async_client:
        queue = NodeQueue(async_client, 3000)
        settings = Settings(redis_url=redis_server.url)
        async with running(settings, queue.count_control_jobs):
            assert not own()
            # When a job comes
            inspecting = asyncio.to_thread(
                ControlQueue(client).inspect_archive, "none.mar", timeout_s=30
            )
            [outcome] = await asyncio.gather(inspecting, return_exceptions=True)
            # Then
            assert isinstance(outcome, ModelNotFound)
            [first] = own()
            # When it is busy
            first.suspend()
            inspecting = asyncio.to_thread(
                ControlQueue(client).inspect_archive, "none.mar", timeout_s=30
            )
            [outcome] = await asyncio.gather(inspecting, return_exceptions=True)
            # Then
            assert isinstance(outcome, ModelNotFound)
            assert len(children := own()) == 2
        # And both end with the node
        assert not any(child.is_running() for child in children)
    client.flushall()
    client.close()
