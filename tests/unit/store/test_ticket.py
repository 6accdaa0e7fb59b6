"""What a ticket keeps when nobody waits any more."""

import asyncio

import pytest

from batching.store.ticket import Ticket


@pytest.mark.parametrize(("is_queued", "kept"), [(True, b""), (False, b"body")])
def test_ticket_keeps_its_body_while_a_submit_may_still_send_it(is_queued, kept):
    async def run():
        reply = asyncio.get_running_loop().create_future()
        ticket = Ticket("a", b"body", 1.0, 0.0, reply)
        ticket.is_queued = is_queued

        ticket.leave()

        assert ticket.wire == kept

    asyncio.run(run())
