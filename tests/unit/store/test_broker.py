"""What the broker knows beyond a lane: whether a version is gone or the whole registry."""

import asyncio

import pytest

from batching import errors
from batching.store import lane as lane_module
from batching.store.broker import Broker
from batching.store.registry import Registry
from tests.support import make_request, make_spec


@pytest.fixture
def registry(real_backend, monkeypatch):
    monkeypatch.setattr(lane_module, "VERSION_PATIENCE_S", 0.1)
    registry = Registry(real_backend.client)
    registry.mark()
    return registry


async def ask(backend, spec):
    broker = Broker(backend.url)
    await broker.start()
    try:
        return await broker.predict(spec, make_request("x"), request_id="a")
    finally:
        await broker.close()


def test_unregistered_version_does_not_exist(real_backend, registry):
    # Given
    spec = make_spec()
    registry.create(spec)
    registry.remove(spec.key)
    # When / Then
    with pytest.raises(errors.VersionNotFound):
        asyncio.run(ask(real_backend, spec))


def test_version_is_worth_another_try_when_redis_was_emptied(real_backend, registry):
    # Given
    spec = make_spec()
    registry.create(spec)
    real_backend.client.flushall()
    # When
    with pytest.raises(errors.QueueLost) as caught:
        asyncio.run(ask(real_backend, spec))
    # Then
    assert caught.value.status == 503
    assert caught.value.retry_after_s == 1.0
