"""What a latency target does to whole traffic: the policy's own decisions, on simulated time."""

import random
from dataclasses import dataclass, field

import pytest

from batching.policy import AdaptivePolicy

MAX_BATCH_SIZE = 8
MAX_WAIT_S = 0.100
PLACES = 100
TRAFFIC_S = 30.0
JITTER = 0.05
NOISE = 1.1  # two runs whose batches fall differently differ by as much


@dataclass(frozen=True)
class Model:
    fixed_s: float
    per_item_s: float

    def run_s(self, size):
        return self.fixed_s + size * self.per_item_s

    @property
    def top_rate(self):
        return MAX_BATCH_SIZE / self.run_s(MAX_BATCH_SIZE)


@dataclass
class Queue:
    """Requests by their arrival times; those that find no place are refused."""

    arrivals: list[float]
    waiting: list[float] = field(default_factory=list)
    come: int = 0
    refused: int = 0

    def next_s(self, count=1):
        """When this many more have come."""
        place = self.come + count - 1
        return self.arrivals[place] if place < len(self.arrivals) else float("inf")

    def admit(self, until_s):
        while self.next_s() <= until_s:
            if len(self.waiting) < PLACES:
                self.waiting.append(self.arrivals[self.come])
            else:
                self.refused += 1
            self.come += 1

    def take(self, count):
        batch, self.waiting = self.waiting[:count], self.waiting[count:]
        return batch


def arrivals_of(rate, chance):
    times, now_s = [], 0.0
    while now_s < TRAFFIC_S:
        now_s += chance.expovariate(rate)
        times.append(now_s)
    return times


def serve(model, *, rate, slo_s):
    """The 99th percentile of the latencies, and the part of the requests that was refused."""
    chance = random.Random(1)
    policy = AdaptivePolicy(MAX_BATCH_SIZE, MAX_WAIT_S, slo_s)
    queue, now_s, latencies_s = Queue(arrivals_of(rate, chance)), 0.0, []
    while queue.waiting or queue.come < len(queue.arrivals):
        if not queue.waiting:
            now_s = max(now_s, queue.next_s())
            queue.admit(now_s)
        # As the batcher does: a partial batch waits until it is full, or for the time it is given.
        missing = policy.batch_size - len(queue.waiting)
        if missing > 0:
            left_s = policy.seconds_left(len(queue.waiting), now_s - queue.waiting[0])
            now_s = min(now_s + left_s, max(now_s, queue.next_s(missing)))
            queue.admit(now_s)
        batch = queue.take(policy.batch_size)
        run_s = model.run_s(len(batch)) * chance.uniform(1 - JITTER, 1 + JITTER)
        ages_s = [now_s - arrived_s for arrived_s in batch]
        now_s += run_s
        queue.admit(now_s)
        policy.observe(ages_s, run_s, now_s)
        latencies_s += [now_s - arrived_s for arrived_s in batch]
    latencies_s.sort()
    return latencies_s[int(0.99 * len(latencies_s))], queue.refused / len(queue.arrivals)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.9])
@pytest.mark.parametrize(
    "model", [Model(0.030, 0.001), Model(0.010, 0.005), Model(0.002, 0.010)], ids=str
)
def test_latency_target_is_kept_or_makes_nothing_worse(model, load):
    rate = load * model.top_rate
    plain_p99_s, plain_refused = serve(model, rate=rate, slo_s=0.0)
    # From far out of reach to easy, by what a batch of one takes
    for times in (0.5, 1.5, 2.05, 2.5, 4.0):
        slo_s = times * model.run_s(1)
        p99_s, refused = serve(model, rate=rate, slo_s=slo_s)
        assert p99_s <= max(slo_s, NOISE * plain_p99_s), f"{times} times a batch of one"
        assert refused <= plain_refused, f"{times} times a batch of one"


def test_latency_target_makes_nothing_worse_when_more_comes_than_can_be_served():
    model = Model(0.030, 0.001)
    rate = 1.5 * model.top_rate
    plain_p99_s, plain_refused = serve(model, rate=rate, slo_s=0.0)
    p99_s, refused = serve(model, rate=rate, slo_s=0.066)
    assert p99_s <= NOISE * plain_p99_s
    assert refused == pytest.approx(plain_refused, abs=0.02)


def test_latency_target_lets_a_worker_out_that_was_overrun_with_small_batches():
    # Given a worker that has run batches of one only, one after the other, and sees no request
    # more than it can answer
    policy = AdaptivePolicy(MAX_BATCH_SIZE, MAX_WAIT_S, latency_slo_s=0.070)
    model, now_s = Model(0.030, 0.001), 0.0
    for size in [*[1, 2] * 5, *[1] * 100]:
        now_s += model.run_s(size)
        policy.observe([1.0] * size, model.run_s(size), now_s)
    # When it goes on with batches as large as it may
    sizes = []
    for _ in range(50):
        sizes.append(policy.batch_size)
        now_s += model.run_s(sizes[-1])
        policy.observe([1.0] * sizes[-1], model.run_s(sizes[-1]), now_s)
    # Then they grow
    assert sizes[-1] == MAX_BATCH_SIZE
