"""Some things are under way at once, and come out in order."""

from concurrent.futures import Future

import pytest

from ferry_client.async_client import in_order


@pytest.fixture
def begun():
    """Holds the inputs that were begun, each with the future of its end."""
    return {}


def test_inputs_are_begun_when_there_is_room_and_given_out_in_order(begun):
    # Given
    finished = []
    futures = in_order(lambda one: begun.setdefault(one, Future()), range(5), 3, finished.append)
    # When / Then
    assert next(futures) is begun[0]
    assert list(begun) == [0, 1, 2]
    begun[2].set_result("")
    begun[0].set_result("")
    assert next(futures) is begun[1]
    assert list(begun) == [0, 1, 2, 3]
    assert list(futures) == [begun[2], begun[3], begun[4]]
    assert finished == [1, 2]


def test_what_is_open_is_cancelled_when_no_more_is_wanted(begun):
    # Given
    futures = in_order(lambda one: begun.setdefault(one, Future()), range(9), 3)
    next(futures)
    # When
    futures.close()
    # Then
    assert [future.cancelled() for future in begun.values()] == [True] * 3


def test_room_for_none_is_refused():
    with pytest.raises(ValueError, match="1 or more"):
        next(in_order(lambda _: Future(), [1], 0))
