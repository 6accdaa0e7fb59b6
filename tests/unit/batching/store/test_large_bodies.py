"""Large bodies between a client and Redis: in one write with their submit, and never copied."""

import pytest

from batching.protocol import INLINE_LIMIT_BYTES, Part, Request
from batching.store.ingress_queue import IngressQueue, Submission, SubmitCode
from tests.support import DEAD_AFTER_MS, KEY, items_of, make_reply, wire_of
from tests.unit.batching.store.channels import SteppedRedis, special


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


@pytest.mark.parametrize("end", ["replied", "cancelled", "late", "refused"])
def test_large_body_goes_with_its_request(harness, end):
    # Given
    body = wire_of("a", size=4 * INLINE_LIMIT_BYTES)
    harness.ingress().submit([Submission("a", 10_000, body)])
    assert harness.has_body("a")
    worker = harness.worker()
    # When
    if end == "replied":
        worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
    elif end == "cancelled":
        harness.ingress().cancel(["a"])
    elif end == "late":
        harness.age_request("a", 20_000)
        worker.claim(1, 0.0)
    else:
        harness.silence_worker()
        harness.node().refuse_waiting(KEY, "no_worker")
    # Then
    assert not harness.has_body("a")
    assert harness.unaccounted() == 0
