"""Some things are under way at once, and come out in order."""

from concurrent.futures import Future

import pytest

from ferry_client.async_client import in_order


class Begun:
    """Futures that the test ends."""

    def __init__(self):
        self.inputs = []
        self.futures = []

    def start(self, one):
        self.inputs.append(one)
        self.futures.append(Future())
        return self.futures[-1]


def test_inputs_are_begun_when_there_is_room_and_given_out_in_order():
    # Given
    begun = Begun()
    finished = []
    futures = in_order(begun.start, iter(range(5)), 3, finished.append)
    # When / Then
    assert next(futures) is begun.futures[0]
    assert begun.inputs == [0, 1, 2]
    begun.futures[2].set_result("")
    begun.futures[0].set_result("")
    assert next(futures) is begun.futures[1]
    assert begun.inputs == [0, 1, 2, 3]
    rest = list(futures)
    assert rest == begun.futures[2:]
    assert begun.inputs == [0, 1, 2, 3, 4]
    assert finished == [1, 2]


def test_what_is_open_is_cancelled_when_no_more_is_wanted():
    # Given
    begun = Begun()
    futures = in_order(begun.start, range(9), 3)
    next(futures)
    # When
    futures.close()
    # Then
    assert [future.cancelled() for future in begun.futures] == [True] * 3


def test_room_for_none_is_refused():
    with pytest.raises(ValueError, match="1 or more"):
        next(in_order(Begun().start, [1], 0))
