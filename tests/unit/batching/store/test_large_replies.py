"""Large replies are fetched once each, a few at a time, whatever the audit says meanwhile."""

import asyncio

import redis

from batching.store.large_replies import AT_ONCE, LargeReplyFetcher
from tests.support import eventually_async

IDS = [f"r{number}" for number in range(AT_ONCE + 1)]


class SlowStore:
    """Large replies that come when the test lets them, and not if they are too many at once."""

    def __init__(self, most_at_once=AT_ONCE):
        self.may_come = asyncio.Event()
        self.most_at_once = most_at_once
        self.fetched, self.discarded = [], []

    async def fetch_large(self, attempts, read):
        self.fetched.append(list(attempts))
        await asyncio.sleep(0)  # others get a turn, as in every call to Redis
        self.discarded += read
        await self.may_come.wait()
        if len(attempts) > self.most_at_once:
            raise redis.TimeoutError("the answer has not come in time")
        return dict.fromkeys(attempts, b"reply")


class Scene:
    """A fetcher and what it has delivered."""

    def __init__(self, **options):
        self.store = SlowStore(**options)
        self.wanted, self.delivered = set(IDS), {}
        self.fetcher = LargeReplyFetcher(
            self.store, self.wanted.__contains__, self.delivered.update
        )

    def add(self, *request_ids):
        for request_id in request_ids:
            self.fetcher.add(request_id, "1")

    async def fetch_all(self):
        self.store.may_come.set()
        await eventually_async(lambda: not self.fetcher.is_busy)


async def test_reply_on_its_way_is_not_fetched_once_more():
    # Given
    scene = Scene()
    scene.add("r0", "r1")
    await eventually_async(lambda: scene.store.fetched)
    # When
    scene.add("r0", "r1")
    await scene.fetch_all()
    # Then
    assert scene.store.fetched == [["r0", "r1"], []]
    assert scene.delivered == {"r0": b"reply", "r1": b"reply"}
    assert scene.store.discarded == ["r0", "r1"]


async def test_what_does_not_come_together_comes_alone():
    # Given
    scene = Scene(most_at_once=1)
    # When
    scene.add("r0", "r1")
    await scene.fetch_all()
    # Then
    assert scene.store.fetched == [["r0", "r1"], ["r0"], ["r1"], []]
    assert list(scene.delivered) == ["r0", "r1"]


async def test_what_does_not_come_alone_is_fetched_when_it_is_named_again():
    # Given
    scene = Scene(most_at_once=0)
    scene.add("r0", "r1")
    await scene.fetch_all()
    assert scene.delivered == {}
    # When
    scene.store.most_at_once = AT_ONCE
    scene.add("r1")
    await scene.fetch_all()
    # Then
    assert list(scene.delivered) == ["r1"]


async def test_reply_that_no_client_waits_for_is_deleted_and_not_fetched():
    # Given
    scene = Scene()
    scene.wanted.remove("r0")
    # When
    scene.add("r0")
    await scene.fetch_all()
    # Then
    assert (scene.store.fetched, scene.store.discarded) == ([[]], ["r0"])


async def test_replies_are_deleted_together_with_the_fetch_of_the_next_ones():
    # Given
    scene = Scene()
    # When
    scene.add(*IDS)
    await scene.fetch_all()
    # Then
    assert scene.store.fetched == [IDS[:AT_ONCE], IDS[AT_ONCE:], []]
    assert scene.store.discarded == IDS
