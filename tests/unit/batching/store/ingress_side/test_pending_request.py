"""What a waiter keeps when its client waits no more, and when Redis has lost its request."""

import asyncio

import pytest

from batching.store.ingress_side.pending_request import PendingRequest


@pytest.mark.parametrize(("is_queued", "kept"), [(True, b""), (False, b"body")])
def test_waiter_keeps_its_body_while_a_submit_may_still_send_it(is_queued, kept):
    async def run():
        reply = asyncio.get_running_loop().create_future()
        waiter = PendingRequest("a", b"body", 1.0, 0.0, reply)
        waiter.is_queued = is_queued

        waiter.leave()

        assert waiter.wire == kept

    asyncio.run(run())


def test_waiter_enters_anew_under_another_id_and_with_its_old_deadline():
    async def run():
        waiter = PendingRequest("a", b"body", 10.0, 1.0, asyncio.get_running_loop().create_future())
        waiter.is_queued = True

        waiter.enter_anew("b", 5.0)

        assert (waiter.request_id, waiter.entered_at, waiter.deadline) == ("b", 5.0, 11.0)
        assert (waiter.is_queued, waiter.is_resubmitted) == (False, True)

    asyncio.run(run())
