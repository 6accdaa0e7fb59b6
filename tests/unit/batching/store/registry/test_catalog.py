"""The ingress's cached view of the registry, on the real server: it lives from announcements."""

import asyncio
import contextlib
import gc
import threading
import time
import weakref

import pytest
import redis

from batching import errors
from batching.store.registry.catalog import RESTORED_WITHIN_S, Catalog
from batching.store.registry.registry import Registry
from tests.support import eventually_async, make_outage, make_spec
from tests.timing import assert_within

V1 = make_spec(model_version="1.0")
V2 = make_spec(model_version="2.0")


class CountingRedis(redis.Redis):
    """A client that counts its look-ups of models."""

    looked_up = 0

    def hget(self, name, key):
        self.looked_up += 1
        return super().hget(name, key)


class SlowRedis(CountingRedis):
    """A client whose next look-up has read its answer and hands it over late."""

    is_slow = False

    def slow_down(self):
        self.has_read, self.may_go = threading.Event(), threading.Event()
        self.is_slow = True

    def hget(self, name, key):
        value = super().hget(name, key)
        if self.is_slow:
            self.is_slow = False
            self.has_read.set()
            assert self.may_go.wait(5)
        return value


@pytest.fixture
def registry(real_backend):
    return Registry(real_backend.client)


@contextlib.asynccontextmanager
async def open_catalog(backend, kind=CountingRedis, *, restored_within_s=RESTORED_WITHIN_S):
    client = kind.from_url(backend.url)
    catalog = Catalog(
        Registry(client), backend.url, make_outage(), restored_within_s=restored_within_s
    )
    await catalog.start()
    await caught_up(catalog, 0)
    try:
        yield catalog, client
    finally:
        await catalog.close()
        client.close()


async def caught_up(catalog, changes_seen):
    """It listens anew, and has read what it may have missed since it had seen so many changes."""
    await eventually_async(lambda: catalog._is_listening and catalog._changes_seen > changes_seen)


async def listening(backend):
    await eventually_async(lambda: backend.client.pubsub_numsub("{ferry}:changes")[0][1] == 1)


async def resolves_to(catalog, spec):
    """The catalog has heard of the new default."""
    async with asyncio.timeout(5):
        while await catalog.resolve(spec.model_name, None) != spec:
            await asyncio.sleep(0.001)


async def cached(catalog, client, name="digits"):
    """The catalog answers for this model from its memory."""

    async with asyncio.timeout(5):
        before = -1
        while client.looked_up != before:
            before = client.looked_up
            await catalog.resolve(name, None)


async def forgotten(catalog, client, name):
    """The catalog has heard that this model changed."""
    before = client.looked_up
    async with asyncio.timeout(5):
        while client.looked_up == before:
            await asyncio.sleep(0.001)
            await catalog.resolve(name, None)


async def test_catalog_refuses_soon_when_redis_is_not_heard(real_backend, registry):
    registry.create(V1)

    async with open_catalog(real_backend, SlowRedis) as (catalog, client):
        # Given a look-up whose answer does not come
        client.slow_down()
        started_s = time.monotonic()

        # When / Then
        with pytest.raises(errors.StoreUnavailable):
            await catalog.resolve("digits", None)
        assert_within(time.monotonic() - started_s, 2)
        client.may_go.set()


async def test_catalog_remembers_nothing_older_than_a_change_it_heard_of(real_backend, registry):
    registry.create(V1)
    registry.create(V2)
    registry.create(make_spec(model_name="other"))

    async with open_catalog(real_backend, SlowRedis) as (catalog, client):
        # Given: an answer that was read before the default changed and arrives afterwards
        await cached(catalog, client, "other")
        client.slow_down()
        slow = asyncio.create_task(catalog.resolve("digits", None))
        await asyncio.to_thread(client.has_read.wait, 5)
        registry.set_default("digits", "2.0")
        registry.announce("other")
        await forgotten(catalog, client, "other")

        # When
        client.may_go.set()
        await slow

        # Then
        assert await catalog.resolve("digits", None) == V2


async def test_requests_that_ask_for_a_model_together_share_the_answer_and_keep_their_order(
    real_backend, registry
):
    registry.create(V1)

    async with open_catalog(real_backend, SlowRedis) as (catalog, client):
        order = []

        async def ask(number):
            assert await catalog.resolve("digits", None) == V1
            order.append(number)

        # Given: a look-up that takes its time
        before = client.looked_up
        client.slow_down()
        first = asyncio.create_task(ask(0))
        await asyncio.to_thread(client.has_read.wait, 5)

        # When others ask meanwhile, and have had time to
        others = [asyncio.create_task(ask(number)) for number in range(1, 8)]
        await asyncio.sleep(0)
        client.may_go.set()
        await asyncio.gather(first, *others)

        # Then
        assert order == list(range(8))
        assert client.looked_up == before + 1


async def test_catalog_finds_a_model_registered_while_another_request_asked_in_vain(
    real_backend, registry
):
    async with open_catalog(real_backend, SlowRedis) as (catalog, client):
        # Given: a look-up that has found nothing, and does not say so yet
        client.slow_down()
        early = asyncio.create_task(catalog.resolve("digits", None))
        await asyncio.to_thread(client.has_read.wait, 5)

        # When it is registered, and another request asks for it
        registry.create(V1)
        late = asyncio.create_task(catalog.resolve("digits", None))
        await asyncio.sleep(0)
        client.may_go.set()

        # Then
        with pytest.raises(errors.ModelNotFound):
            await early
        assert await late == V1


@pytest.mark.parametrize("is_broken", [False, True])
async def test_catalog_answers_from_memory_until_the_model_changes(
    real_backend, registry, is_broken
):
    registry.create(V1)
    registry.create(V2)

    async with open_catalog(real_backend) as (catalog, client):
        # Given
        await cached(catalog, client)
        if is_broken:
            real_backend.client.client_kill_filter(_type="pubsub")
            await eventually_async(
                lambda: real_backend.client.pubsub_numsub("{ferry}:changes")[0][1] == 0
            )

        # When
        registry.set_default("digits", "2.0")
        await listening(real_backend)

        # Then
        await resolves_to(catalog, V2)


@contextlib.asynccontextmanager
async def emptied(backend, registry, catalog, *, is_marked=False):
    """Redis was emptied, its connections broken; yields a request for a model that was there."""
    known, changes_seen = registry.snapshot().values(), catalog._changes_seen
    backend.client.flushall()
    backend.client.client_kill_filter(_type="pubsub")
    await caught_up(catalog, changes_seen)
    if is_marked:
        registry.mark()
    asked = asyncio.create_task(catalog.resolve("digits", None))
    await asyncio.sleep(0)
    yield asked, known


@pytest.mark.parametrize("is_known", [True, False])
async def test_request_waits_for_the_registry_of_an_emptied_redis(real_backend, registry, is_known):
    registry.mark()
    registry.create(V1)

    async with open_catalog(real_backend, restored_within_s=10.0) as (catalog, client):
        # Given
        if is_known:
            await cached(catalog, client)
        async with emptied(real_backend, registry, catalog) as (asked, known):
            # When
            await answered(client)
            assert not asked.done()
            registry.restore(known)

            # Then
            assert await asked == V1


async def test_catalog_that_has_looked_nothing_up_knows_what_was_there(real_backend, registry):
    # Given an ingress that is older than the first node, and has had no request
    async with open_catalog(real_backend, restored_within_s=10.0) as (catalog, client):
        registry.mark()
        registry.create(V1)
        await eventually_async(lambda: catalog._epoch)

        # When
        async with emptied(real_backend, registry, catalog) as (asked, known):
            await answered(client)
            assert not asked.done()
            registry.restore(known)

            # Then
            assert await asked == V1


async def answered(client):
    """The registry has answered once more."""
    before = client.looked_up
    await eventually_async(lambda: client.looked_up > before + 1)


@pytest.mark.parametrize("is_marked", [True, False])
async def test_request_waits_only_so_long_for_the_registry(real_backend, registry, is_marked):
    registry.mark()
    registry.create(V1)

    async with open_catalog(real_backend, restored_within_s=0.2) as (catalog, client):
        await cached(catalog, client)
        # When
        async with emptied(real_backend, registry, catalog, is_marked=is_marked) as (asked, _):
            # Then the model has gone, or no node has said yet
            with pytest.raises(errors.ModelNotFound if is_marked else errors.QueueLost):
                await asked


class LostRedis(redis.Redis):
    """A client whose look-ups of models fail."""

    def hget(self, name, key):
        raise redis.ConnectionError


class Body(bytearray):
    """Stands for a request's body; a weak reference can watch it."""


@pytest.mark.parametrize("contents", [[b"x"], [b"x", b"y"]], ids=["one", "together"])
async def test_requests_whose_look_up_failed_let_go_of_their_bodies(real_backend, contents):
    async def ask(body):
        try:
            await catalog.resolve("digits", None)
        except errors.StoreUnavailable:
            return
        raise AssertionError(f"{body} was passed on")

    async with open_catalog(real_backend, LostRedis) as (catalog, _):
        gc.collect()
        gc.disable()
        try:
            # Given some that ask together, and no collector
            bodies = [Body(content) for content in contents]
            watched = [weakref.ref(body) for body in bodies]
            asking = [asyncio.create_task(ask(body)) for body in bodies]
            del bodies
            # When
            await asyncio.gather(*asking)
            # Then; the thread that looked up may hold the error a moment longer
            await eventually_async(lambda: not any(body() for body in watched))
        finally:
            gc.enable()
