"""A name that moves to another server, as of a managed Redis: a refused caller connects anew."""

import asyncio

import pytest
import redis

from batching.store import keys
from batching.store.clients import connect, connect_async
from batching.store.held_connections import AsyncHeldConnection, HeldConnection
from batching.store.scripts.loader import command
from batching.store.worker_queue import ParkedPop
from tests.chaos.proxy import ChaosProxy
from tests.chaos.tcp_redis import TcpRedis

BEAT = command("beat", [keys.NODES], [60_000, 60_000, 0, 1, "node-a"])


@pytest.fixture(scope="module")
def servers():
    with TcpRedis() as first, TcpRedis() as second:
        yield first, second


@pytest.fixture
def moving(servers, tmp_path):
    """A URL, and what makes the server behind it a replica of the one that it leads to then."""
    first, second = servers
    for server in servers:
        server.stand_alone()
    with ChaosProxy(tmp_path / "redis.sock", first.port) as proxy:

        def move():
            first.client.replicaof("127.0.0.1", str(second.port))
            proxy.target = second.port  # for connections that are made from now on

        yield proxy.url, move


def by_held_connection(url, move):
    call_twice(HeldConnection(connect(url)).call, BEAT, move)


def by_pool(url, move):
    call_twice(connect(url).set, keys.EPOCH, move)


def call_twice(call, argument, move):
    arguments = (argument, "1") if argument == keys.EPOCH else (argument,)
    call(*arguments)
    move()
    with pytest.raises(redis.ConnectionError):
        call(*arguments)
    call(*arguments)


def by_parked_pop(url, move):
    parked = ParkedPop(connect(url), "{model2:a:1}:full_batch:worker-a")
    parked.wait(0.01)
    move()
    with pytest.raises(redis.ConnectionError):
        parked.wait(2.0)
    assert not parked.wait(0.01)


def by_async_held_connection(url, move):
    with asyncio.Runner() as runner:
        client = connect_async(url)
        line = AsyncHeldConnection(client)
        call_twice(lambda command: runner.run(line.call(command)), BEAT, move)
        runner.run(line.close())
        runner.run(client.aclose())


def by_async_pool(url, move):
    with asyncio.Runner() as runner:
        client = connect_async(url)
        call_twice(lambda *arguments: runner.run(client.set(*arguments)), keys.EPOCH, move)
        runner.run(client.aclose())


@pytest.mark.parametrize(
    "write_twice",
    [by_held_connection, by_pool, by_parked_pop, by_async_held_connection, by_async_pool],
)
def test_refused_writer_connects_to_the_server_that_the_name_leads_to_now(moving, write_twice):
    write_twice(*moving)
