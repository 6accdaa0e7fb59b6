"""Two Redis backends for every test of the store: one in this process, one real server."""

import pytest

from cli.embedded_redis import EmbeddedRedis, find_server
from tests.support import fake_backend, server_backend


@pytest.fixture(scope="session")
def redis_server():
    """A server of this test run's own, on a unix socket in a temporary directory."""
    with EmbeddedRedis(find_server()) as server:
        yield server


@pytest.fixture
def real_backend(redis_server):
    """The real server, empty: for memory limits, time-outs and wake-ups."""
    backend = server_backend(redis_server.url)
    yield backend
    backend.client.close()


@pytest.fixture(params=["fakeredis", "server"])
def store_backend(request):
    """An empty Redis; each test runs on both kinds."""
    if request.param == "server":
        return request.getfixturevalue("real_backend")
    return fake_backend()
