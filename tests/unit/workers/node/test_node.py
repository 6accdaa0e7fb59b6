"""A node, and errors that its parts do not foresee."""

import asyncio
import os
import signal

import psutil
import pytest

from batching.settings.settings import Settings
from batching.store import keys
from batching.store.registry.registry import Registry
from tests.support import eventually_async, make_spec
from workers.node.node import Node


@pytest.fixture
def settings(real_backend, tmp_path):
    """Those of a node at the real server."""
    return Settings(
        redis_url=real_backend.url, work_dir=tmp_path / "work", disable_system_metrics=True
    )


@pytest.fixture
def registry(real_backend):
    client = real_backend.connect()
    yield Registry(client)
    client.connection_pool.disconnect()


async def test_node_lives_on_when_one_of_its_roles_fails(real_backend, registry, settings, caplog):
    # Given a node that follows the registry
    said = "task failed name=_reconcile_forever"

    node = Node(settings, [])
    living = asyncio.create_task(node.run())
    await eventually_async(registry.alive_nodes, 10)
    # When the epoch is one that no code has written
    epoch = await eventually_async(registry.epoch)
    real_backend.client.set(keys.EPOCH, b"\xff")
    registry.announce("unknown")
    await eventually_async(lambda: said in caplog.text, 10)
    # Then it lives, and goes on once that is mended
    assert not living.done()
    real_backend.client.set(keys.EPOCH, epoch)
    registry.create(make_spec(min_worker=1))
    await eventually_async(lambda: registry.workers(make_spec().key), 10)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(living, 10)


async def test_node_tells_a_redis_that_came_back_with_an_older_state_what_is_so(
    real_backend, registry, settings
):
    client = real_backend.client

    # Given a node that has joined, and a state without it
    node = Node(settings, [])
    living = asyncio.create_task(node.run())
    [known] = await eventually_async(registry.nodes, 10)
    await eventually_async(lambda: client.pubsub_numsub(keys.CHANGES)[0][1] == 1)
    client.hdel(keys.NODE_INFO, known.node_id)
    # When its connections break between two beats
    client.client_kill_filter(_type="pubsub")
    # Then
    assert await eventually_async(registry.nodes, 10) == [known]
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(living, 10)


def test_node_leaves_nothing_open(registry, settings):
    # Given
    assert not registry.alive_nodes()  # over a connection that stays
    open_files = psutil.Process().num_fds()
    node = Node(settings, [])

    async def run():
        living = asyncio.create_task(node.run())
        await eventually_async(registry.alive_nodes, 10)
        # When
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(living, 10)

    asyncio.run(run())
    # Then
    assert psutil.Process().num_fds() <= open_files
