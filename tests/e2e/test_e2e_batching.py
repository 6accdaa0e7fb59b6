"""When a batch leaves, on an idle server: full ones at once, others when their time is up."""

import statistics
import time

import pytest

from batching.batcher import LEAD_LIMIT_S
from tests.e2e.clients import Clients
from tests.support import eventually
from tests.timing import TooSlow, assert_within

BATCH_SIZE = 8
TRIES = 16
MEASURED_AGAIN_S = 60.0
TOLERANCE_MS = 3.0
DELAYS_MS = (5, 10, 50)
BETWEEN_TRIES_S = 0.01

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def tries_of(server, ledger, path, *, count, gap_s, window_s):
    """Sends `count` requests, `gap_s` apart, TRIES times.

    Returns how many batches each try needed, and the ms from its first and its last request on
    until the first batch ran.
    """
    bodies = [f"item {number}" for number in range(count)]
    tries = []
    with Clients(server.inference, count) as clients:
        clients.ask(path, bodies)
        while len(tries) < TRIES:
            ledger.clear()
            exchange = clients.ask(path, bodies, spacing_s=gap_s)
            assert exchange.bodies == bodies
            time.sleep(BETWEEN_TRIES_S)  # not a wait: it makes the server idle again
            first_s, last_s = exchange.sent_at[0], exchange.sent_at[-1]
            if last_s - first_s > window_s / 2:
                continue  # what could not be sent in time proves nothing
            calls = ledger.calls()
            ran_s = calls[0].started_at
            # Whatever the machine does: what is not full does not leave before its window is over.
            assert len(calls) == 1 or ran_s - first_s >= window_s - LEAD_LIMIT_S
            tries.append((len(calls), 1000 * (ran_s - first_s), 1000 * (ran_s - last_s)))
    return zip(*tries, strict=True)


def best_ms(measure, target_ms, tolerance_ms):
    """Measures again and again until all tries were one batch and ran in time; returns their ms.

    Times are promised for an idle machine. Whatever else runs on this one can only make tries
    worse, so one good round shows what the server does, and none of several is no accident.
    """
    end = time.monotonic() + MEASURED_AGAIN_S
    while True:
        batches, found_ms = measure()
        if set(batches) == {1}:
            off_ms = max(abs(ms - target_ms) for ms in found_ms)
            if off_ms <= tolerance_ms or time.monotonic() > end:
                return found_ms
        elif time.monotonic() > end:
            raise TooSlow(f"{batches} batches of requests that were sent together")


@pytest.mark.parametrize("delay_ms", DELAYS_MS)
def test_full_batch_leaves_at_once(server, scripted, ledger, delay_ms):
    name, gap_s = f"full-{delay_ms}", delay_ms / 1000 / 3 / BATCH_SIZE
    # A server that waited for the window's end would have a median of two thirds of the delay.
    latest_ms = max(5.0, delay_ms / 2)

    def measure():
        sends = {"count": BATCH_SIZE, "gap_s": gap_s, "window_s": delay_ms / 1000}
        batches, _, ms = tries_of(server, ledger, f"/predictions/{name}", **sends)
        return batches, ms

    # When eight requests take a third of the delay to come to an idle model, again and again
    with server.model(scripted, name, batch_size=BATCH_SIZE, max_batch_delay=delay_ms):
        from_last_ms = best_ms(measure, 0, latest_ms)

    # Then each eight are one batch, which runs as soon as the eighth is there
    assert_within(statistics.median(from_last_ms), TOLERANCE_MS)
    assert_within(max(from_last_ms), latest_ms)


@pytest.mark.parametrize("delay_ms", DELAYS_MS)
def test_partial_batch_runs_when_its_delay_is_over(server, scripted, ledger, delay_ms):
    name = f"partial-{delay_ms}"

    def measure():
        sends = {"count": 3, "gap_s": 0.0, "window_s": delay_ms / 1000}
        batches, ms, _ = tries_of(server, ledger, f"/predictions/{name}", **sends)
        return batches, ms

    # When three requests come to an idle model, again and again
    with server.model(scripted, name, batch_size=BATCH_SIZE, max_batch_delay=delay_ms):
        from_first_ms = best_ms(measure, delay_ms, TOLERANCE_MS)

    # Then each three are one batch, which runs when the first of them has waited for the delay
    assert_within(max(abs(ms - delay_ms) for ms in from_first_ms), TOLERANCE_MS)


def test_batch_keeps_arrival_order_and_is_never_larger_than_allowed(server, scripted, ledger):
    # Given a model with batches of three
    with (
        server.model(scripted, "ordered", batch_size=3, max_batch_delay=30) as model,
        Clients(server.inference, 7) as clients,
    ):
        # When seven requests come one after the other while the first batch is busy
        bodies = ["hold|0", *(f"{number}" for number in range(1, 7))]
        sent_at = clients.send(f"/predictions/{model}", bodies, spacing_s=0.004)
        assert_within(sent_at[2] - sent_at[0], 0.02)
        eventually(lambda: server.describe(model)["jobQueueStatus"]["pendingRequests"] == 4)
        ledger.let_go()

        # Then they run in their order in batches of three, three and one
        assert [answer.body.decode() for answer in clients.receive(7)] == bodies
    assert [call.bodies for call in ledger.calls()] == [bodies[:3], bodies[3:6], bodies[6:]]
