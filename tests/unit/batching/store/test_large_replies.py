"""Large replies are fetched once each, a few at a time, whatever the audit says meanwhile."""

import asyncio
from collections import Counter

import redis

from batching.store.arena import NO_MEMORY
from batching.store.channel import LARGE_AT_ONCE, Channel
from batching.store.ingress_queue import USUAL_PATIENCE
from batching.store.pending_request import AwaitedRequest
from tests.support import KEY, eventually_async, make_outage, make_reply

IDS = [f"r{number}" for number in range(LARGE_AT_ONCE + 1)]


class SlowQueue:
    """Large replies that come when the test lets them, and not if they are too many at once."""

    def __init__(self):
        self.may_come = asyncio.Event()
        self.most_at_once = LARGE_AT_ONCE
        self.fetched, self.discarded = [], []

    async def fetch_large(self, attempts, read):
        self.fetched.append(list(attempts))
        await asyncio.sleep(0)  # others get a turn, as in every call to Redis
        self.discarded += read
        await self.may_come.wait()
        if len(attempts) > self.most_at_once:
            raise redis.TimeoutError("the answer has not come in time")
        return {name: memoryview(name.encode() + make_reply(name).encode()) for name in attempts}


class Scene:
    """A channel whose clients wait, and what they got."""

    def __init__(self):
        self.queue = SlowQueue()
        self.channel = Channel(
            *(KEY, self.queue, make_outage(), USUAL_PATIENCE),
            memory=NO_MEMORY,
            resubmitted=Counter(),
        )
        self.requests = {name: AwaitedRequest(name) for name in IDS}
        self.channel._waiting.update(self.requests)

    def name(self, *request_ids):
        """The replies list, or the audit, names these."""
        self.channel._deliver({name: f"{name}@1".encode() for name in request_ids})

    async def fetch_all(self):
        self.queue.may_come.set()
        await eventually_async(lambda: all(task.done() for task in self.channel._tasks.values()))

    @property
    def answered(self):
        return [name for name, request in self.requests.items() if request.is_over]


async def test_reply_on_its_way_is_not_fetched_once_more():
    scene = Scene()
    # Given
    scene.name("r0", "r1")
    await eventually_async(lambda: scene.queue.fetched)
    # When
    scene.name("r0", "r1")
    await scene.fetch_all()
    # Then
    assert scene.queue.fetched == [["r0", "r1"], []]
    assert scene.answered == scene.queue.discarded == ["r0", "r1"]
    assert bytes((await scene.requests["r0"].outcome()).body) == b"r0"


async def test_what_does_not_come_together_comes_alone_and_else_when_it_is_named_again():
    scene = Scene()
    # Given
    scene.queue.most_at_once = 0
    scene.name("r0", "r1")
    await scene.fetch_all()
    assert scene.answered == []
    # When
    scene.queue.most_at_once = 1
    scene.name("r0", "r1")
    await scene.fetch_all()
    # Then
    assert scene.queue.fetched == [["r0", "r1"], ["r0"], ["r0", "r1"], ["r0"], ["r1"], []]
    assert scene.answered == ["r0", "r1"]


async def test_reply_that_no_client_waits_for_is_deleted_and_not_fetched():
    scene = Scene()
    # When its client leaves after it was named
    scene.name("r0")
    del scene.channel._waiting["r0"]
    await scene.fetch_all()
    # Then
    assert (scene.queue.fetched, scene.queue.discarded) == ([[]], ["r0"])


async def test_replies_are_deleted_together_with_the_fetch_of_the_next_ones():
    scene = Scene()
    # When
    scene.name(*IDS)
    await scene.fetch_all()
    # Then
    assert scene.queue.fetched == [IDS[:LARGE_AT_ONCE], IDS[LARGE_AT_ONCE:], []]
    assert scene.queue.discarded == IDS
