"""The limits of connections: silence on the network (when it is cut: tests/network), and number."""

import asyncio
import socket

import pytest

from batching.store.clients import connect, connect_async
from tests.chaos.tcp_redis import TcpRedis
from tests.support import hold_connections, hold_connections_async

MANY = 150  # more than redis-py allows a client by itself
needs_user_timeout = pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no TCP_USER_TIMEOUT"
)


@pytest.fixture(scope="module")
def url():
    with TcpRedis() as server:
        yield f"redis://127.0.0.1:{server.port}"


def limits_of(connected):
    names = (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
    return [connected.getsockopt(socket.IPPROTO_TCP, name) for name in names]


@needs_user_timeout
async def test_connection_ends_after_a_second_unheard_or_a_few_of_silence(url):
    async with connect_async(url) as client:
        connection = await client.connection_pool.get_connection()
        assert limits_of(connection._writer.get_extra_info("socket")) == [1000, 2, 1]
        await client.connection_pool.release(connection)
    with connect(url) as client:
        connection = client.connection_pool.get_connection()
        assert limits_of(connection._sock) == [1000, 2, 1]
        client.connection_pool.release(connection)


def test_connection_of_a_probe_is_made_within_its_time(url):
    with connect(url, socket_timeout_s=0.5) as client:
        options = client.connection_pool.connection_kwargs
        assert options["socket_connect_timeout"] == 0.5


def test_client_has_as_many_connections_as_it_needs_or_its_url_says(url):
    assert hold_connections(connect(url), MANY) == MANY
    assert asyncio.run(hold_connections_async(connect_async(url), MANY)) == MANY
    with pytest.raises(Exception, match="Too many connections"):
        hold_connections(connect(f"{url}?max_connections=3"), 4)
