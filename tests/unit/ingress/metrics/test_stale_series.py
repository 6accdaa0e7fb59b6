"""Metrics of versions that are not registered any more."""

import asyncio
import contextlib

import fakeredis
import pytest

from batching.models.spec import VersionKey
from batching.store.registry.registry import Registry
from ingress.metrics.ingress_metrics import Metrics
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


class Looks:
    """The registry, which changes between two looks."""

    def __init__(self, registry, *between):
        self.registry = registry
        self.between = list(between)

    def specs(self):
        if self.between:
            self.between.pop(0)()
        return self.registry.specs()


@contextlib.asynccontextmanager
async def looking(metrics, looks):
    task = asyncio.create_task(metrics.forget_unregistered(looks, 0.001))
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def nothing():
    """Changes nothing between two looks."""


async def test_version_that_is_not_registered_any_more_loses_its_series(registry, metrics):
    async with looking(metrics, Looks(registry)):
        await eventually_async(lambda: metrics.versions() == {KEPT})


async def test_version_that_is_registered_again_soon_keeps_its_series(registry, metrics):
    # Given a version that is back at the second look, and gone at the third
    seen = []

    def remove():
        registry.remove(GONE)

    def note():
        seen.append(metrics.versions())

    async with looking(
        metrics, Looks(registry, nothing, lambda: registry.create(SPEC), remove, note)
    ):
        # When it has been missing at two looks in a row
        await eventually_async(lambda: metrics.versions() == {KEPT})
    # Then
    assert seen == [{KEPT, GONE}]


async def test_redis_that_is_away_costs_no_series(server, registry, metrics):
    # Given a Redis that is away at the second look, and back at the third
    seen = []

    def leave():
        server.connected = False

    def come():
        server.connected = True

    def note():
        seen.append(metrics.versions())

    async with looking(metrics, Looks(registry, nothing, leave, come, note)):
        await eventually_async(lambda: seen)
    # Then
    assert seen == [{KEPT, GONE}]
