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
    """The registry, which changes before each look."""

    def __init__(self, registry, changes):
        self.registry = registry
        self.changes = iter(changes)

    def specs(self):
        next(self.changes, lambda: None)()
        return self.registry.specs()


@pytest.mark.parametrize("case", ["unregistered", "registered again", "away"])
async def test_version_loses_its_series_when_it_is_missing_at_two_looks(
    server, registry, metrics, case
):
    # Given what happens before each look, and what is there before the last one
    seen = []

    def note():
        seen.append(metrics.versions())

    def connect(is_connected):
        return lambda: setattr(server, "connected", is_connected)

    changes, kept = {
        "unregistered": ([lambda: None], {KEPT}),
        "registered again": ([lambda: registry.create(SPEC)], {KEPT, GONE}),
        "away": ([connect(False), connect(True)], {KEPT, GONE}),
    }[case]
    looks = Looks(registry, [lambda: None, *changes, note])
    # When
    task = asyncio.create_task(metrics.forget_unregistered(looks, 0.001))
    await eventually_async(lambda: seen)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    # Then
    assert seen == [kept]
