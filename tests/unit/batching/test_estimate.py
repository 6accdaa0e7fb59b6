import pytest

from batching.estimate import LONGEST_GAP_S, Estimator


def observe_steadily(estimator, *, gap_s, sizes, cost_s):
    """Batches of these sizes from arrivals `gap_s` apart, each leaving with its newest request."""
    began_s = 0.0
    for size in sizes:
        began_s += size * gap_s
        ages_s = [gap_s * place for place in reversed(range(size))]
        run_s = cost_s(size)
        estimator.observe(ages_s, run_s, began_s + run_s)


def test_estimator_expects_nothing_at_first():
    assert Estimator().estimate.gap_s == float("inf")


def test_estimator_learns_gap_and_cost():
    # Given
    estimator = Estimator()

    # When
    observe_steadily(
        estimator, gap_s=0.010, sizes=[1, 4, 2, 8] * 10, cost_s=lambda n: 0.020 + 0.003 * n
    )

    # Then
    estimate = estimator.estimate
    assert estimate.gap_s == pytest.approx(0.010)
    assert estimate.fixed_s == pytest.approx(0.020)
    assert estimate.per_item_s == pytest.approx(0.003)
    assert estimate.run_s(8) == pytest.approx(0.044)


def test_estimator_takes_all_cost_for_fixed_while_batches_have_one_size():
    # Given
    estimator = Estimator()

    # When
    observe_steadily(estimator, gap_s=0.010, sizes=[1] * 5, cost_s=lambda n: 0.020)

    # Then
    assert estimator.estimate.fixed_s == pytest.approx(0.020)
    assert estimator.estimate.per_item_s == 0.0


def test_estimator_never_believes_that_larger_batches_are_cheaper():
    # Given
    estimator = Estimator()

    # When
    observe_steadily(estimator, gap_s=0.010, sizes=[1, 8] * 5, cost_s=lambda n: 0.1 / n)

    # Then
    assert estimator.estimate.per_item_s == 0.0
    assert estimator.estimate.fixed_s > 0.0


def test_estimator_never_believes_that_a_batch_costs_less_than_its_items():
    # Given
    estimator = Estimator()

    # When
    observe_steadily(estimator, gap_s=0.010, sizes=[1, 8] * 5, cost_s=lambda n: 0.001 * n * n)

    # Then
    assert estimator.estimate.fixed_s == pytest.approx(0.0, abs=1e-9)
    assert estimator.estimate.per_item_s > 0.0


def test_estimator_counts_from_arrival_to_arrival():
    # Given
    estimator = Estimator()
    estimator.observe([0.0], 0.010, 1.010)

    # When the next batch leaves a second later, and its newest request has waited
    estimator.observe([0.700, 0.400], 0.010, 2.010)

    # Then
    assert estimator.estimate.gap_s == pytest.approx(0.600 / 2)


def test_estimator_follows_traffic_that_changes():
    # Given
    estimator = Estimator()
    observe_steadily(estimator, gap_s=0.001, sizes=[8] * 20, cost_s=lambda n: 0.010)

    # When requests come one by one
    now_s = 100.0
    for _ in range(20):
        now_s += 0.5
        estimator.observe([0.0], 0.010, now_s)

    # Then
    assert estimator.estimate.gap_s == pytest.approx(0.5, rel=0.1)


def test_estimator_counts_a_long_pause_as_one_short_one():
    # Given
    estimator = Estimator()
    estimator.observe([0.0], 0.010, 0.0)

    # When
    estimator.observe([0.0], 0.010, 36_000.0)

    # Then
    assert estimator.estimate.gap_s == LONGEST_GAP_S
