import pytest

from batching.policy import FixedPolicy

POLICY = FixedPolicy(batch_size=8, patience_s=0.050)


@pytest.mark.parametrize("waiting", [8, 9, 1000])
def test_policy_lets_a_full_batch_leave_at_once(waiting):
    assert POLICY.seconds_left(waiting, oldest_age_s=0.0) == 0.0


@pytest.mark.parametrize(
    ("oldest_age_s", "left_s"), [(0.0, 0.050), (0.020, 0.030), (0.049, 0.001), (-0.010, 0.060)]
)
def test_policy_counts_from_the_arrival_of_the_oldest(oldest_age_s, left_s):
    assert POLICY.seconds_left(7, oldest_age_s) == pytest.approx(left_s)


@pytest.mark.parametrize("oldest_age_s", [0.050, 0.051, 3600.0])
def test_policy_lets_a_partial_batch_leave_when_its_oldest_is_old_enough(oldest_age_s):
    assert POLICY.seconds_left(1, oldest_age_s) == 0.0


@pytest.mark.parametrize(
    "policy", [FixedPolicy(batch_size=1, patience_s=5.0), FixedPolicy(batch_size=8, patience_s=0.0)]
)
def test_policy_never_waits_when_nothing_can_be_gained(policy):
    assert policy.seconds_left(1, oldest_age_s=0.0) == 0.0
