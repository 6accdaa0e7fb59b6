import pytest


@pytest.fixture(autouse=True)
def _leaves_no_eternal_key(request):
    """Whatever a test of the store does, every key it leaves has a TTL or is declared permanent."""
    names = [name for name in ("store_backend", "real_backend") if name in request.fixturenames]
    backends = [request.getfixturevalue(name) for name in names]
    yield
    for backend in backends:
        assert backend.leaks() == []


@pytest.fixture
def full_memory(real_harness):
    """The harness once more, with Redis at its `maxmemory` when the test calls what it gets."""
    client = real_harness.client

    def fill():
        client.config_set("maxmemory", 1_000_000)

    yield fill
    client.config_set("maxmemory", 0)
