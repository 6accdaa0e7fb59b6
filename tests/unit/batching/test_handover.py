"""A worker learns how early it has to ask for a batch whose window ends."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.handover import LIMIT_S, STEP_S, Handover


@pytest.mark.parametrize("cost_s", [0.0, 0.0003, 0.0011, 0.0019])
def test_batch_comes_to_be_in_hand_when_its_window_ends(cost_s):
    # Given a machine on which waking up and claiming takes about `cost_s`
    handover, noise = Handover(), random.Random(7)

    # When
    for _ in range(200):
        handover.observe(cost_s + noise.uniform(0, STEP_S) - handover.seconds)

    # Then
    assert handover.seconds == pytest.approx(cost_s, abs=2 * STEP_S)


def test_long_pause_counts_no_more_than_a_short_one():
    # Given
    handover = Handover()
    before_s = handover.seconds

    # When
    handover.observe(5.0)

    # Then
    assert handover.seconds == pytest.approx(before_s + STEP_S)


@given(st.lists(st.floats(-1, 1)))
def test_window_is_never_shortened_by_more_than_the_limit(late_s):
    handover = Handover()
    for one_s in late_s:
        handover.observe(one_s)
        assert 0.0 <= handover.seconds <= LIMIT_S
