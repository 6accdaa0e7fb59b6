"""What a server costs that nobody asks, and that a long queue costs a claim nothing."""

import statistics
from collections.abc import Iterator

import pytest

from benchmarks import idle, scaling
from benchmarks.claims import claim_times_ms
from benchmarks.fleet import Fleet
from benchmarks.load import BenchmarkError, wrk_path
from benchmarks.processors import total_percent
from cli.embedded_redis import EmbeddedRedis, find_server
from tests.timing import assert_within

WATCHED_S = 5.0
SETTLE_S = 2.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def found() -> Iterator[idle.Found]:
    with Fleet() as fleet:
        yield idle.measure(fleet, WATCHED_S, SETTLE_S)


def test_idle_server_takes_less_than_a_hundredth_of_a_core(found: idle.Found) -> None:
    # When: five models, a worker each, with the Redis of `ferry up`
    roles = {"supervisor", "Redis", "node", "ingress", "control jobs", "workers"}

    # Then
    assert set(found.usage) == roles
    assert_within(total_percent(found.usage), idle.TOTAL_PERCENT)


def test_ingress_is_small(found: idle.Found) -> None:
    # Then
    assert 0 < found.ingress_bytes < idle.INGRESS_BYTES


def test_hundred_models_more_cost_the_ingress_nothing(found: idle.Found) -> None:
    # Given
    before, after = found.usage["ingress"], found.usage_with_more["ingress"]

    # Then
    assert found.after_more_bytes - found.before_more_bytes <= idle.MORE_MODELS_BYTES
    assert after.wakes_per_s <= before.wakes_per_s + idle.MORE_WAKES_PER_S
    assert_within(after.percent, before.percent + 0.1)


def test_claim_takes_no_longer_when_ten_thousand_wait() -> None:
    # Given
    with EmbeddedRedis(find_server()) as redis:
        # When
        times_ms = claim_times_ms(redis.url, waiting=10_000, limit=32, claims=50)

    # Then
    assert_within(statistics.median(times_ms), scaling.CLAIM_MS)


def test_throughput_of_two_nodes_is_measured() -> None:
    # Given
    try:
        wrk_path()
    except BenchmarkError as error:
        pytest.skip(str(error))

    # When
    (point,) = scaling.throughputs({2: [2]}, 1.0)

    # Then: a worker that naps answers at most a batch per nap
    most_per_s = 2 * scaling.BATCH_SIZE * 1000 / scaling.NAP_MS
    assert 0 < point.requests_per_s <= 1.1 * most_per_s
    assert point.errors == 0
    assert point.busiest_percent > 0
