"""Connections to Redis that a silent network cannot hold up; what they do when it is cut is in
tests/network."""

import asyncio
import socket

import pytest

from batching.store.clients import connect, connect_async
from tests.chaos.tcp_redis import TcpRedis

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no TCP_USER_TIMEOUT"
)


@pytest.fixture(scope="module")
def url():
    with TcpRedis() as server:
        yield f"redis://127.0.0.1:{server.port}"


def limits_of(connected):
    names = (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
    return [connected.getsockopt(socket.IPPROTO_TCP, name) for name in names]


def test_connection_ends_after_a_second_unheard_or_a_few_of_silence(url):
    with connect(url) as client:
        connection = client.connection_pool.get_connection()
        assert limits_of(connection._sock) == [1000, 2, 1]
        client.connection_pool.release(connection)


def test_async_connection_ends_after_a_second_unheard_or_a_few_of_silence(url):
    async def run():
        async with connect_async(url) as client:
            connection = await client.connection_pool.get_connection()
            assert limits_of(connection._writer.get_extra_info("socket")) == [1000, 2, 1]
            await client.connection_pool.release(connection)

    asyncio.run(run())


def test_connection_of_a_probe_is_made_within_its_time(url):
    with connect(url, socket_timeout_s=0.5) as client:
        options = client.connection_pool.connection_kwargs
        assert options["socket_connect_timeout"] == 0.5
