"""Metrics of versions that are not registered any more."""

import asyncio
import contextlib

import fakeredis
import pytest

from batching.models.spec import VersionKey
from batching.store.registry.registry import Registry
from ingress.metrics.ingress_metrics import Metrics
from ingress.metrics.stale_series import StaleSeries
from tests.support import eventually_async, make_spec

KEPT, GONE = VersionKey("m", "1.0"), VersionKey("m", "2.0")
SPEC = make_spec(model_name="m", model_version="2.0")


@pytest.fixture
def server():
    return fakeredis.FakeServer()


@pytest.fixture
def registry(server):
    """Two versions, of which one was unregistered."""
    known = Registry(fakeredis.FakeRedis(server=server))
    known.create(make_spec(model_name="m", model_version="1.0"))
    known.create(SPEC)
    known.remove(GONE)
    return known


@pytest.fixture
def metrics():
    counted = Metrics()
    for key in (KEPT, GONE):
        counted.version(key, None).count_answer(200, 0.01, None)
    return counted


async def test_version_that_is_not_registered_any_more_loses_its_series(registry, metrics):
    stale = StaleSeries(registry, metrics, interval_s=0.001)
    looking = asyncio.create_task(stale.run())
    await eventually_async(lambda: metrics.versions() == {KEPT})
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking


async def test_version_that_is_registered_again_soon_keeps_its_series(registry, metrics):
    # Given
    stale = StaleSeries(registry, metrics)
    await stale.look()
    registry.create(SPEC)
    await stale.look()
    registry.remove(GONE)
    # When
    await stale.look()
    # Then
    assert metrics.versions() == {KEPT, GONE}
    # And not for ever
    await stale.look()
    assert metrics.versions() == {KEPT}


async def test_redis_that_is_away_costs_no_series(server, registry, metrics):
    # Given
    stale = StaleSeries(registry, metrics)
    await stale.look()
    server.connected = False
    await stale.look()
    # When: it is back, and has been emptied
    server.connected = True
    await stale.look()
    # Then
    assert metrics.versions() == {KEPT, GONE}
