"""How much one submit brings, and when it is given up."""

import asyncio

import pytest
import redis

from batching import errors
from batching.protocol import Wire
from batching.store.pending_request import AwaitedRequest
from batching.store.submitter import SUBMIT_AT_ONCE, submit, take_some

LIMIT = 1000


def waiting(wire):
    request = AwaitedRequest("a")
    request.wire, request.entered_at = wire, asyncio.get_running_loop().time()
    request.deadline = request.entered_at + 10.0
    return request


@pytest.mark.parametrize(
    ("sizes", "turns"),
    [
        ([1] * (SUBMIT_AT_ONCE + 1), [SUBMIT_AT_ONCE, 1]),
        ([LIMIT // 2, LIMIT // 2, 1], [2, 1]),
        ([LIMIT + 1, 1, LIMIT + 1], [1, 1, 1]),
    ],
)
async def test_submit_brings_many_requests_or_many_bytes(sizes, turns):
    # Given
    pending = [waiting(Wire(bytes(size))) for size in sizes]

    # When
    taken = [len(take_some(pending, LIMIT)) for _ in turns]

    # Then
    assert taken == turns
    assert pending == []


class FailingAtTheEnd:
    """Its connection breaks in the very moment in which the patience for it ends."""

    async def submit(self, _):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise redis.ConnectionError("closed by server") from None


async def test_submit_is_given_up_although_an_error_came_at_the_same_moment():
    # Given
    request = waiting(Wire(b"x"))
    # When
    with pytest.raises(errors.StoreUnavailable) as caught:
        await submit(FailingAtTheEnd(), [request], 0.0)
    # Then
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert asyncio.current_task().cancelling() == 0
