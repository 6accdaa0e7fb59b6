import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batching.models.spec import ModelSpec
from batching.policy import AdaptivePolicy, Estimate, FixedPolicy, largest_size, policy_of

# Up to a few times what the policy may wait for.
seconds = st.floats(0, 0.2)
slos = st.just(0.0) | st.floats(0, 1)


def policy_that_knows(estimate, *, slo_s=0.0):
    policy = AdaptivePolicy(max_batch_size=8, max_wait_s=0.050, latency_slo_s=slo_s)
    policy.estimator.estimate = estimate
    return policy


@pytest.mark.parametrize(
    ("batch_size", "patience_s", "waiting", "oldest_age_s", "left_s"),
    [
        *((8, 0.050, waiting, 0.0, 0.0) for waiting in (8, 9, 1000)),  # full
        (8, 0.050, 7, 0.0, 0.050),
        (8, 0.050, 7, 0.020, 0.030),
        (8, 0.050, 7, -0.010, 0.060),
        *((8, 0.050, 1, age_s, 0.0) for age_s in (0.050, 0.051, 3600.0)),
        (1, 5.0, 1, 0.0, 0.0),  # nothing can be gained
        (8, 0.0, 1, 0.0, 0.0),
    ],
)
def test_fixed_policy_counts_from_the_arrival_of_the_oldest(
    batch_size, patience_s, waiting, oldest_age_s, left_s
):
    policy = FixedPolicy(batch_size, patience_s)
    assert policy.seconds_left(waiting, oldest_age_s) == pytest.approx(left_s)


def test_adaptive_policy_does_not_wait_when_it_knows_nothing():
    assert policy_that_knows(Estimate()).patience_s == 0.0


def test_adaptive_policy_waits_for_as_many_as_pay():
    # Given: 6 gaps are less than the fixed cost, 7 are not
    policy = policy_that_knows(Estimate(gap_s=0.003, fixed_s=0.020, per_item_s=0.001))
    # Then it waits for the missing ones
    assert policy.seconds_left(1, oldest_age_s=0.0) == pytest.approx(5 * 0.003)
    assert policy.seconds_left(4, oldest_age_s=0.009) == pytest.approx(2 * 0.003)
    assert policy.seconds_left(5, oldest_age_s=0.012) == pytest.approx(0.003)
    assert policy.seconds_left(6, oldest_age_s=0.015) == 0.0


@given(gap_s=seconds, fixed_s=seconds, per_item_s=seconds, slo_s=slos, age_s=seconds)
@example(gap_s=5e-324, fixed_s=1.0, per_item_s=5e-324, slo_s=1.0, age_s=0.0)
@example(gap_s=0.0, fixed_s=0.0, per_item_s=5e-324, slo_s=1.0, age_s=0.0)
def test_adaptive_policy_never_waits_longer_than_the_fixed_one(
    gap_s, fixed_s, per_item_s, slo_s, age_s
):
    policy = policy_that_knows(Estimate(gap_s, fixed_s, per_item_s), slo_s=slo_s)
    fixed = FixedPolicy(8, 0.050)
    assert 0.0 <= policy.patience_s <= fixed.patience_s
    assert 1 <= policy.batch_size <= fixed.batch_size
    for waiting in range(1, 10):
        left_s = policy.seconds_left(waiting, age_s)
        assert 0.0 <= left_s <= fixed.seconds_left(waiting, age_s)


@pytest.mark.parametrize(
    ("gap_s", "slo_s", "size"),
    [
        (0.200, 0.100, 3),  # 20 ms + 10 ms each run in half of the target
        (0.200, 0.0, 8),
        # A batch of one takes 30 ms: a target that is out of reach costs no throughput.
        (0.200, 0.062, 1),
        (0.200, 0.058, 8),
        # Batches stay large enough for the requests that come.
        (float("inf"), 0.062, 1),
        (0.121, 0.062, 1),  # in a quarter of one gap, a batch of 1 just runs
        (0.082, 0.062, 2),
        (0.057, 0.062, 5),
        (0.040, 0.062, 8),  # no size is enough: the time for each item alone takes that quarter
        (0.0, 0.062, 8),
    ],
)
def test_largest_size_keeps_to_the_latency_target_as_far_as_traffic_allows(gap_s, slo_s, size):
    estimate = Estimate(gap_s, fixed_s=0.020, per_item_s=0.010)
    assert largest_size(estimate, 8, latency_slo_s=slo_s) == size


def test_adaptive_policy_does_not_wait_away_its_latency_target():
    # Given a request that has waited for 20 of its 80 ms, and a batch that takes 50
    policy = policy_that_knows(Estimate(0.005, 0.050), slo_s=0.080)
    assert policy.seconds_left(1, oldest_age_s=0.020) == pytest.approx(0.010)


def test_policy_of_a_spec_is_the_one_it_was_registered_with():
    words = {"model_url": "m.mar", "handler": "h", "batch_size": 4, "max_batch_delay_ms": 20}
    fixed = ModelSpec("m", "1.0", **words)
    adaptive = ModelSpec("m", "1.0", batch_policy="adaptive", latency_slo_ms=80, **words)
    assert policy_of(fixed) == FixedPolicy(4, 0.020)
    policy = policy_of(adaptive)
    assert isinstance(policy, AdaptivePolicy)
    assert (policy.max_batch_size, policy.max_wait_s, policy.latency_slo_s) == (4, 0.020, 0.080)
