"""How much one submit brings."""

import asyncio

import pytest

from batching.store.submitting import SUBMIT_AT_ONCE, SUBMIT_AT_ONCE_BYTES, take_some
from batching.store.ticket import Ticket

LIMIT = SUBMIT_AT_ONCE_BYTES


@pytest.mark.parametrize(
    ("sizes", "turns"),
    [
        ([1] * (SUBMIT_AT_ONCE + 1), [SUBMIT_AT_ONCE, 1]),
        ([LIMIT // 2, LIMIT // 2, 1], [2, 1]),
        ([LIMIT + 1, 1, LIMIT + 1], [1, 1, 1]),
    ],
)
def test_submit_brings_many_requests_or_many_bytes(sizes, turns):
    async def run():
        # Given
        new_reply = asyncio.get_running_loop().create_future
        pending = [Ticket("a", bytes(size), 1.0, 0.0, new_reply()) for size in sizes]

        # When
        taken = [len(take_some(pending)) for _ in turns]

        # Then
        assert taken == turns
        assert pending == []

    asyncio.run(run())
