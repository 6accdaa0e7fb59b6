"""What an idle server costs, and that a long queue costs a claim nothing."""

import statistics

import pytest

from benchmarks import idle, scaling
from benchmarks.servers.running import Torchferry
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def server():
    """Five models, a worker each, and no client."""
    with Torchferry(handler="nap") as running:
        idle.register_models(running, SETTLE_S)
        yield running


def test_idle_server_takes_next_to_nothing(server):
    # When
    usage = idle.watch(server, WATCHED_S)

    # Then: all of it, with the Redis of `ferry up`
    assert set(usage) == {"supervisor", "Redis", "node", "ingress", "control jobs", "workers"}
    assert sum(one["wakes_per_s"] for one in usage.values()) <= WAKES_PER_S
    assert_within(sum(one["percent"] for one in usage.values()), MARGIN * idle.TOTAL_PERCENT)


def test_ingress_is_small(server):
    # When / Then
    assert 0 < idle.ingress_bytes(server) < idle.INGRESS_MB * 1e6


@pytest.mark.long
def test_hundred_models_more_cost_the_ingress_nothing(server):
    # Given
    usage = idle.watch(server, WATCHED_S / 2)["ingress"]

    # When
    before_bytes, after_bytes = idle.register_more(server, SETTLE_S)

    # Then
    assert after_bytes - before_bytes <= MARGIN * idle.MORE_MODELS_MB * 1e6
    usage_with_more = idle.watch(server, WATCHED_S)["ingress"]
    most_wakes_per_s = usage["wakes_per_s"] + MARGIN * idle.MORE_WAKES_PER_S
    assert usage_with_more["wakes_per_s"] <= most_wakes_per_s
    assert_within(usage_with_more["percent"], usage["percent"] + MARGIN * MORE_PERCENT)


def test_claim_takes_no_longer_when_ten_thousand_wait():
    assert scaling.WAITING == 10_000

    # When
    times_ms = scaling.claim_times_ms()

    # Then
    assert_within(statistics.median(times_ms), scaling.CLAIM_MS)
