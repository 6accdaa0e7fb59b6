"""A Redis that is there and refuses: clients and the log are told so."""

import asyncio
import contextlib

import pytest

from batching import errors
from batching.store import keys
from batching.store.broker import Broker
from batching.store.clients import connect, connect_async
from batching.store.registry.registry import Registry, changed_models
from tests.chaos.tcp_redis import TcpRedis
from tests.support import (
    eventually,
    eventually_async,
    make_outage,
    make_spec,
    wire_of,
)


@pytest.fixture(scope="module")
def server():
    with TcpRedis() as running:
        yield running


@pytest.fixture
def url(server):
    server.client.flushall()
    return f"redis://127.0.0.1:{server.port}"


@contextlib.contextmanager
def set_to(server, name, value):
    """The server's setting has this value in the with block."""
    [before] = server.client.config_get(name).values()
    server.client.config_set(name, value)
    try:
        yield
    finally:
        server.client.config_set(name, before)


@contextlib.contextmanager
def disk_lost(server):
    """It cannot save what it is told to save, and takes no writes, nor PINGs."""
    with set_to(server, "save", "3600 1"):
        server.lose_folder()
        server.client.bgsave()
        eventually(lambda: server.client.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield


def replica_lost(server):
    return set_to(server, "min-replicas-to-write", 1)


@pytest.fixture
def registry(url):
    client = connect(url)
    yield Registry(client)
    client.close()


@pytest.mark.parametrize("refusing", [disk_lost, replica_lost])
async def test_request_is_told_that_redis_refuses_and_not_that_no_worker_is_there(
    server, url, registry, refusing, caplog
):
    # Given workers that cannot say that they are there
    registry.create(make_spec())
    registry.mark()

    broker = Broker(url, make_outage(url))
    with refusing(server), pytest.raises(errors.StoreUnavailable, match="refuses"):
        await broker.predict(make_spec(), wire_of("x"), request_id="a")
    # When that is over, then
    with pytest.raises(errors.NoWorker):
        await broker.predict(make_spec(), wire_of("x"), request_id="b")
    await broker.close()
    assert "Redis refuses" in caplog.text


async def test_refused_ping_is_no_silence(server, url):
    def refused_pings():
        return server.client.info("commandstats").get("cmdstat_ping", {}).get("rejected_calls", 0)

    async with connect_async(url) as client:
        listening = changed_models(client, silence_s=0.2)
        assert await anext(listening) is None
        # Given
        with disk_lost(server):
            before = refused_pings()
            change = asyncio.ensure_future(anext(listening))
            await eventually_async(lambda: change.done() or refused_pings() > before + 1)
            # When
            server.client.publish(keys.CHANGES, "digits")
            # Then
            assert await change == "digits"
        await listening.aclose()
