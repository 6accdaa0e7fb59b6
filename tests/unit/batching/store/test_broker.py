"""What the broker knows beyond a channel: whether a version is gone or the whole registry."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
import redis

from batching import errors
from batching.store.broker import Broker
from batching.store.ingress_queue import Patience
from batching.store.keys import VersionKeys
from batching.store.registry.registry import Registry
from tests.support import KEY, eventually_async, make_outage, make_spec, wire_of

# A channel's loops end soon after its last client has left.
SHORT = Patience(version_s=0.1, audit_s=0.01, block_s=0.01)


@pytest.fixture
def registry(real_backend):
    registry = Registry(real_backend.client)
    registry.mark()
    return registry


async def ask(backend, spec):
    broker = Broker(backend.url, make_outage(), patience=SHORT)
    try:
        return await broker.predict(spec, wire_of("x"), request_id="a")
    finally:
        await broker.close()


async def test_unregistered_version_does_not_exist(real_backend, registry):
    # Given
    spec = make_spec()
    registry.create(spec)
    registry.remove(spec.key)
    # When / Then
    with pytest.raises(errors.VersionNotFound):
        await ask(real_backend, spec)


async def test_version_is_worth_another_try_when_redis_was_emptied(real_backend, registry):
    # Given
    spec = make_spec()
    registry.create(spec)
    real_backend.client.flushall()
    # When
    with pytest.raises(errors.QueueLost) as caught:
        await ask(real_backend, spec)
    # Then
    assert caught.value.status == 503
    assert caught.value.retry_after_s == 1.0


async def test_workers_have_time_to_beat_after_an_outage_others_noticed(real_backend, registry):
    # Given a model that could not be looked up while Redis was away
    spec = make_spec()
    registry.create(spec)
    outage = make_outage()
    outage.note("look up", redis.ConnectionError("away"))
    names = VersionKeys.of(spec.key)

    broker = Broker(real_backend.url, outage, patience=Patience(version_s=10.0))
    # When
    asking = asyncio.create_task(broker.predict(spec, wire_of("x"), request_id="a"))
    await eventually_async(lambda: any(channel._moved_at for channel in broker._channels.values()))
    seconds, _ = real_backend.client.time()
    real_backend.client.zadd(names.worker_beats, {"worker-a": 1000 * seconds})
    real_backend.client.expire(names.worker_beats, 60)
    # Then it is queued, and not told that there is no worker
    await eventually_async(lambda: asking.done() or real_backend.client.llen(names.queue))
    assert not asking.done()
    asking.cancel()
    await broker.close()


async def test_no_worker_is_told_of_at_once_where_a_user_may_not_listen(real_backend, registry):
    # Given a model without workers, and what fails all the time while Redis is there
    spec = make_spec()
    registry.create(spec)
    outage = make_outage()
    outage.note("listen", redis.exceptions.NoPermissionError("No permissions: channel"))

    broker = Broker(real_backend.url, outage, patience=Patience(version_s=60.0, back_s=60.0))
    # When / Then
    with pytest.raises(errors.NoWorker):
        await asyncio.wait_for(broker.predict(spec, wire_of("x"), request_id="a"), 5)
    await broker.close()


# --- channels


@contextlib.asynccontextmanager
async def open_broker(backend, unused_s=60.0):
    patience = replace(SHORT, unused_s=unused_s)
    broker = Broker(backend.url, make_outage(), patience=patience)
    try:
        yield broker
    finally:
        await broker.close()


async def use(broker, spec):
    with pytest.raises(errors.NoWorker):
        await broker.predict(spec, wire_of("x"), request_id=f"of {spec.model_version}")


@pytest.mark.parametrize(("unused_s", "is_closed"), [(0.0, True), (60.0, False)])
async def test_broker_closes_a_channel_that_was_not_used_for_long(
    real_backend, registry, unused_s, is_closed
):
    async with open_broker(real_backend, unused_s) as broker:
        # Given
        first, second = make_spec(), make_spec(model_version="2.0")
        registry.create(first)
        registry.create(second)
        await use(broker, first)
        channel = broker._channels[first.key]
        await eventually_async(lambda: channel.is_idle)

        # When
        await use(broker, second)
        await eventually_async(broker._closing.done)

        # Then
        assert (first.key not in broker._channels) == is_closed
        await use(broker, first)


async def test_broker_counts_resubmissions_of_channels_that_were_closed(real_harness):
    spec, other = make_spec(), make_spec(model_version="2.0")

    async with open_broker(real_harness.backend, unused_s=0.0) as broker:
        # Given: a request that Redis has lost
        asked = asyncio.create_task(broker.predict(spec, wire_of("x"), request_id="a"))
        await eventually_async(lambda: real_harness.queued() == ["a"])
        real_harness.client.delete(real_harness.keys.queue, real_harness.keys.open)
        await eventually_async(lambda: broker.resubmitted == {KEY: 1})
        asked.cancel()
        channel = broker._channels[KEY]
        await eventually_async(lambda: channel.is_idle)

        # When
        with pytest.raises(errors.QueueLost):
            await broker.predict(other, wire_of("x"), request_id="b")
        await eventually_async(lambda: KEY not in broker._channels)

        # Then: and it goes on from there
        assert broker.resubmitted[KEY] == 1
        asked = asyncio.create_task(broker.predict(spec, wire_of("x"), request_id="c"))
        await eventually_async(lambda: KEY in broker._channels)
        assert broker.resubmitted[KEY] == 1
        asked.cancel()
