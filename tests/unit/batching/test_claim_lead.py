"""A worker learns how early it has to ask for a batch whose window ends."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.claim_lead import LIMIT_S, STEP_S, ClaimLead


@pytest.mark.parametrize("cost_s", [0.0, 0.0003, 0.0011, 0.0019])
def test_batch_comes_to_be_in_hand_when_its_window_ends(cost_s):
    # Given a machine on which waking up and claiming takes about `cost_s`
    claim_lead, noise = ClaimLead(), random.Random(7)

    # When
    for _ in range(200):
        claim_lead.observe(cost_s + noise.uniform(0, STEP_S) - claim_lead.seconds)

    # Then
    assert claim_lead.seconds == pytest.approx(cost_s, abs=2 * STEP_S)


def test_long_pause_counts_no_more_than_a_short_one():
    # Given
    claim_lead = ClaimLead()
    before_s = claim_lead.seconds

    # When
    claim_lead.observe(5.0)

    # Then
    assert claim_lead.seconds == pytest.approx(before_s + STEP_S)


@given(st.lists(st.floats(-1, 1)))
def test_window_is_never_shortened_by_more_than_the_limit(late_s):
    claim_lead = ClaimLead()
    for one_s in late_s:
        claim_lead.observe(one_s)
        assert 0.0 <= claim_lead.seconds <= LIMIT_S
