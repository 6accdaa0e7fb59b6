"""What a waiter keeps when its client waits no more."""

import asyncio

import pytest

from batching.store.waiter import Waiter


@pytest.mark.parametrize(("is_queued", "kept"), [(True, b""), (False, b"body")])
def test_waiter_keeps_its_body_while_a_submit_may_still_send_it(is_queued, kept):
    async def run():
        reply = asyncio.get_running_loop().create_future()
        waiter = Waiter("a", b"body", 1.0, 0.0, reply)
        waiter.is_queued = is_queued

        waiter.leave()

        assert waiter.wire == kept

    asyncio.run(run())
