"""Large bodies between a client and Redis: in one write with their submit, and never copied."""

import asyncio

import pytest

from batching.protocol import INLINE_LIMIT_BYTES, Part, Request
from batching.store.ingress_queue import IngressQueue, Submission, SubmitCode
from batching.store.submitter import RefusedByRedis
from tests.support import DEAD_AFTER_MS, KEY, eventually_async, items_of, make_reply
from tests.unit.batching.store.channels import (
    SteppedRedis,
    ask,
    open_channel,
    special,
)


@pytest.mark.parametrize("kind", [bytes, bytearray])
async def test_body_is_sent_as_the_very_object_that_came_in(real_harness, kind):
    # Given
    client = special(SteppedRedis, real_harness.backend.url)
    queue = IngressQueue(client, KEY, "ingress-a", DEAD_AFTER_MS)
    bodies = [kind(bytes([number]) * 4 * INLINE_LIMIT_BYTES) for number in range(3)]
    requests = [Request({}, [Part("body", "image/jpeg", body)]) for body in bodies]
    submissions = [
        Submission(name, 60_000, request.to_wire())
        for name, request in zip("abc", requests, strict=True)
    ]

    # When
    codes = await queue.submit(submissions)
    await queue.close()
    await client.aclose()

    # Then
    assert codes == [SubmitCode.QUEUED] * 3
    large = [one for one in client.written if len(one) > INLINE_LIMIT_BYTES]
    assert [one is body for one, body in zip(large, bodies, strict=True)] == [True] * 3
    claimed = real_harness.worker().claim(3, 0.0)
    assert [item.request for item in claimed.items] == requests


MIB = 1024 * 1024


@pytest.fixture
def small_bulk(real_harness):
    """Redis takes no value of more than a MiB."""
    before = real_harness.client.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
    real_harness.client.config_set("proto-max-bulk-len", MIB)
    yield
    real_harness.client.config_set("proto-max-bulk-len", before)


@pytest.mark.usefixtures("small_bulk")
async def test_body_that_redis_does_not_take_fails_alone(real_harness):
    # Given requests that are submitted together
    async with open_channel(real_harness) as channel:
        sizes = (2 * MIB, 100, MIB // 2, 3 * MIB)
        wires = [Request({}, [Part("body", "image/jpeg", bytes(n))]).to_wire() for n in sizes]
        asked = [ask(channel, name, wire) for name, wire in zip("abcd", wires, strict=True)]

        # Then
        for one in (asked[0], asked[3]):
            with pytest.raises(RefusedByRedis, match=r"proto-max-bulk-len.* max_request_size"):
                await asyncio.wait_for(one, 5)
        await eventually_async(lambda: len(real_harness.queued()) == 2)

        # And the others are served
        worker = real_harness.worker()
        items = items_of(worker.claim(4, 0.0))
        worker.reply(items, [make_reply("ok")] * len(items))
        assert [await one for one in (asked[1], asked[2])] == [make_reply("ok")] * 2


@pytest.mark.parametrize(("size_bytes", "is_refused"), [(MIB, False), (MIB + 1, True)])
@pytest.mark.usefixtures("small_bulk")
def test_redis_is_asked_which_bodies_it_takes(real_harness, size_bytes, is_refused):
    assert real_harness.ingress().refuses(size_bytes) is is_refused
