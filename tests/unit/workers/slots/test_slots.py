"""The slots of a node that leaves."""

import asyncio
import itertools

import fakeredis.aioredis

from batching.settings.settings import Settings
from batching.store.node_queue import NodeQueue
from tests.support import KEY, eventually_async, make_outage, make_spec
from workers.slots.slot import SlotContext, Slots


async def test_drained_slots_are_not_opened_again():
    # Given a slot whose archive never comes
    wanted = {KEY: make_spec(min_worker=1)}
    prepared, ends = [], []

    async def prepare(spec, *, is_exact):
        prepared.append(spec)
        await asyncio.Event().wait()

    queue = NodeQueue(fakeredis.aioredis.FakeRedis(), 3000)
    context = SlotContext("node-a", Settings(), queue, itertools.count(), prepare, make_outage())
    slots = Slots(context, [], lambda: ends.append(True))
    slots.follow(wanted)
    await eventually_async(lambda: prepared)
    # When it is drained, and a look at the registry comes late
    await slots.drain(asyncio.Event())
    await eventually_async(lambda: ends)
    slots.follow(wanted)
    # Then
    assert slots.all() == []
