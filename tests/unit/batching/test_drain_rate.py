import pytest

from batching.drain_rate import LONGEST_S, SHORTEST_S, UNKNOWN_S, DrainRate


def drained(per_s: float, from_s: float, to_s: float) -> DrainRate:
    rate = DrainRate()
    for n in range(int((to_s - from_s) * per_s)):
        rate.count(from_s + n / per_s)
    return rate


def test_drain_rate_is_the_answers_per_second_when_steady():
    # Given 40 answers a second for a while
    rate = drained(40, 100.0, 120.0)
    # Then that is the rate, wherever in a window one looks
    assert rate.per_s(120.0) == pytest.approx(40, rel=0.05)


def test_retry_after_grows_with_the_queue_and_shrinks_with_the_rate():
    assert drained(10, 0.0, 20.0).retry_after_s(100, 20.0) == pytest.approx(10, rel=0.1)
    assert drained(50, 0.0, 20.0).retry_after_s(100, 20.0) == pytest.approx(2, rel=0.1)


def test_retry_after_is_bounded():
    assert drained(100, 0.0, 20.0).retry_after_s(1, 20.0) == SHORTEST_S
    assert drained(1, 0.0, 20.0).retry_after_s(10_000, 20.0) == LONGEST_S


def test_retry_after_is_a_guess_when_nothing_drains():
    assert DrainRate().retry_after_s(10, 50.0) == UNKNOWN_S
    # Given a queue that was fast a minute ago and has stood still since
    assert drained(100, 0.0, 20.0).retry_after_s(10, 80.0) == UNKNOWN_S
