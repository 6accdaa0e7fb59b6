import pytest

from batching.policy import (
    LATEST_S,
    LONGEST_GAP_S,
    SOONEST_S,
    UNKNOWN_DRAIN_S,
    DrainRate,
    Estimator,
)


def observe_steadily(estimator, *, gap_s, sizes, cost_s):
    """Batches of these sizes from arrivals `gap_s` apart, each leaving with its newest request."""
    began_s = 0.0
    for size in sizes:
        began_s += size * gap_s
        ages_s = [gap_s * place for place in reversed(range(size))]
        run_s = cost_s(size)
        estimator.observe(ages_s, run_s, began_s + run_s)


@pytest.mark.parametrize(
    ("sizes", "cost_s", "fixed_s", "per_item_s"),
    [
        ([1, 4, 2, 8] * 10, lambda n: 0.020 + 0.003 * n, 0.020, 0.003),
        ([1] * 5, lambda n: 0.020, 0.020, 0.0),  # one size: all cost counts as fixed
        ([1, 8] * 5, lambda n: 0.1 / n, None, 0.0),  # larger batches are never cheaper,
        ([1, 8] * 5, lambda n: 0.001 * n * n, 0.0, None),  # nor cheaper than their items
    ],
)
def test_estimator_learns_gap_and_cost(sizes, cost_s, fixed_s, per_item_s):
    estimator = Estimator()
    observe_steadily(estimator, gap_s=0.010, sizes=sizes, cost_s=cost_s)
    estimate = estimator.estimate
    assert estimate.gap_s == pytest.approx(0.010)
    for value, expected in ((estimate.fixed_s, fixed_s), (estimate.per_item_s, per_item_s)):
        assert value > 0 if expected is None else value == pytest.approx(expected, abs=1e-9)
    assert estimate.run_s(8) == pytest.approx(estimate.fixed_s + 8 * estimate.per_item_s)


def test_estimator_learns_cost_but_not_arrivals_from_jobs():
    # Given
    estimator = Estimator()
    estimator.observe([0.0], 0.010, 1.010)
    estimator.observe([0.0], 0.010, 1.510)
    # When jobs run, alone and along with a request
    estimator.observe([], 0.030, 1.600, jobs=8)
    estimator.observe([0.0], 0.030, 2.030, jobs=7)
    # Then
    assert estimator.estimate.gap_s == pytest.approx(0.5)
    assert estimator.estimate.run_s(8) == pytest.approx(0.030, rel=0.01)


def test_estimator_follows_traffic_that_changes():
    # Given one that expects nothing at first, and counts a long pause as a short one
    estimator = Estimator()
    assert estimator.estimate.gap_s == float("inf")
    for at_s in (-72_000.0, -36_000.0):
        estimator.observe([0.0], 0.010, at_s)
    assert estimator.estimate.gap_s == LONGEST_GAP_S
    observe_steadily(estimator, gap_s=0.001, sizes=[8] * 20, cost_s=lambda n: 0.010)
    # When requests come one by one
    now_s = 100.0
    for _ in range(20):
        now_s += 0.5
        estimator.observe([0.0], 0.010, now_s)
    # Then
    assert estimator.estimate.gap_s == pytest.approx(0.5, rel=0.1)


# --- how fast a queue empties


@pytest.mark.parametrize(
    ("per_s", "waiting", "at_s", "expected_s"),
    [
        (10, 100, 20.0, 10),
        (50, 100, 20.0, 2),
        (100, 1, 20.0, SOONEST_S),
        (1, 10_000, 20.0, LATEST_S),
        (100, 10, 80.0, UNKNOWN_DRAIN_S),  # it was fast a minute ago, and has stood still since
        (0, 10, 50.0, UNKNOWN_DRAIN_S),
    ],
)
def test_retry_after_grows_with_the_queue_and_shrinks_with_the_rate(
    per_s, waiting, at_s, expected_s
):
    # Given so many answers a second for 20 seconds
    rate = DrainRate()
    for n in range(20 * per_s):
        rate.count(n / per_s)
    # Then that is the rate, wherever in a window one looks
    assert at_s > 20 or rate.per_s(at_s) == pytest.approx(per_s, rel=0.05)
    assert rate.retry_after_s(waiting, at_s) == pytest.approx(expected_s, rel=0.1)
