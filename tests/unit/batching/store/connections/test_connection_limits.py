"""More connections at once than redis-py allows a client by itself."""

import asyncio
from collections.abc import Iterator

import pytest

from batching.store.clients import connect, connect_async
from tests.chaos.tcp_redis import TcpRedis
from tests.support import hold_connections, hold_connections_async

MANY = 150


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with TcpRedis() as server:
        yield f"redis://127.0.0.1:{server.port}"


def test_client_has_as_many_connections_as_it_needs(url: str) -> None:
    assert hold_connections(connect(url), MANY) == MANY


def test_async_client_has_as_many_connections_as_it_needs(url: str) -> None:
    assert asyncio.run(hold_connections_async(connect_async(url), MANY)) == MANY


def test_client_has_as_many_connections_as_its_url_says(url: str) -> None:
    with pytest.raises(Exception, match="Too many connections"):
        hold_connections(connect(f"{url}?max_connections=3"), 4)
