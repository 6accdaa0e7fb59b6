"""What an idle server costs, and that a long queue costs a claim nothing."""

import statistics
from collections.abc import Iterator

import pytest

from benchmarks import idle, scaling
from benchmarks.measuring.processors import total_percent
from benchmarks.servers.running import Torchferry
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.ports import free_ports
from tests.timing import assert_within

WATCHED_S = 5.0
SETTLE_S = 2.0
# The same wake-up has been seen to take twice as long on the same machine: its neighbours', and
# whatever else runs. A poll would take much more; the bars themselves are for benchmarks.idle.
MARGIN = 2
# Some thirty are what beats and looks for lost wake-ups come to.
WAKES_PER_S = 50.0
# The heavier registry is looked through now and then; a poll per model would take more.
MORE_PERCENT = 0.1

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server() -> Iterator[Torchferry]:
    """Five models, a worker each, and no client."""
    first = free_ports(3)
    with Torchferry(handler="nap", ports=range(first, first + 3)) as running:
        idle.register_models(running, SETTLE_S)
        yield running


def test_idle_server_takes_next_to_nothing(server: Torchferry) -> None:
    # When
    usage = idle.watch(server, WATCHED_S)

    # Then: all of it, with the Redis of `ferry up`
    assert set(usage) == {"supervisor", "Redis", "node", "ingress", "control jobs", "workers"}
    assert sum(one.wakes_per_s for one in usage.values()) <= WAKES_PER_S
    assert_within(total_percent(usage), MARGIN * idle.TOTAL_PERCENT)


def test_ingress_is_small(server: Torchferry) -> None:
    # When / Then
    assert 0 < idle.ingress_bytes(server) < idle.INGRESS_BYTES


def test_hundred_models_more_cost_the_ingress_nothing(server: Torchferry) -> None:
    # Given
    usage = idle.watch(server, WATCHED_S / 2)["ingress"]

    # When
    before_bytes, after_bytes = idle.register_more(server, SETTLE_S)

    # Then
    assert after_bytes - before_bytes <= MARGIN * idle.MORE_MODELS_BYTES
    usage_with_more = idle.watch(server, WATCHED_S)["ingress"]
    most_wakes_per_s = usage.wakes_per_s + MARGIN * idle.MORE_WAKES_PER_S
    assert usage_with_more.wakes_per_s <= most_wakes_per_s
    assert_within(usage_with_more.percent, usage.percent + MARGIN * MORE_PERCENT)


def test_claim_takes_no_longer_when_ten_thousand_wait() -> None:
    # Given
    with EmbeddedRedis(find_server()) as redis:
        # When
        times_ms = scaling.claim_times_ms(redis.url, waiting=10_000, limit=32, claims=50)

    # Then
    assert_within(statistics.median(times_ms), scaling.CLAIM_MS)
