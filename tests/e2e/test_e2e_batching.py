"""When a batch leaves, on an idle server: full ones at once, others when their time is up."""

import gc
import statistics
import time

import pytest

from tests.e2e.archives import Ledger
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer

BATCH_SIZE = 8
TRIES = 50
TOLERANCE_MS = 3.0
DELAYS_MS = (5, 10, 50)
BETWEEN_TRIES_S = 0.01


def percentile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def measure(
    clients: Clients, ledger: Ledger, path: str, count: int, spacing_s: float
) -> tuple[list[list[str]], float, float]:
    """One try: the batches' bodies; ms from the first and from the last request to the run."""
    ledger.clear()
    bodies = [f"item {number}" for number in range(count)]
    exchange = clients.ask(path, bodies, spacing_s=spacing_s)
    assert exchange.bodies == bodies
    calls = ledger.calls()
    first_ms = (calls[0].started_at - exchange.sent_at[0]) * 1000
    last_ms = (calls[0].started_at - exchange.sent_at[-1]) * 1000
    time.sleep(BETWEEN_TRIES_S)  # not a wait: it makes the server idle again
    return [call.bodies for call in calls], first_ms, last_ms


def report(text: str, values: list[float]) -> None:
    print(  # noqa: T201 - the figures belong in the report of a run
        f"{text}: median {statistics.median(values):.2f} ms, p99 {percentile(values, 0.99):.2f} ms,"
        f" lowest {min(values):.2f} ms, highest {max(values):.2f} ms"
    )


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", DELAYS_MS)
def test_full_batch_leaves_at_once(
    server: FerryServer, scripted: str, ledger: Ledger, delay_ms: int
) -> None:
    # Given an idle model, and clients whose eight requests take a third of the delay to come
    waits_ms: list[float] = []
    batches: list[list[list[str]]] = []
    with (
        server.model(
            scripted, f"full-{delay_ms}", batch_size=BATCH_SIZE, max_batch_delay=delay_ms
        ) as model,
        Clients(server.inference, BATCH_SIZE) as clients,
    ):
        spacing_s = delay_ms / 1000 / 3 / BATCH_SIZE
        measure(clients, ledger, f"/predictions/{model}", BATCH_SIZE, spacing_s)
        gc.collect()

        # When they send eight inside of the window, again and again
        for _ in range(TRIES):
            found, _, last_ms = measure(
                clients, ledger, f"/predictions/{model}", BATCH_SIZE, spacing_s
            )
            batches.append(found)
            waits_ms.append(last_ms)

    # Then each eight are one batch, which runs as soon as the eighth is there
    report(f"delay {delay_ms} ms, 8 requests: eighth sent to run", waits_ms)
    assert [len(found) for found in batches] == [1] * TRIES
    assert all(len(found[0]) == BATCH_SIZE for found in batches)
    assert statistics.median(waits_ms) <= TOLERANCE_MS
    assert percentile(waits_ms, 0.99) <= max(TOLERANCE_MS, delay_ms / 2)  # not the window's end


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", DELAYS_MS)
def test_partial_batch_runs_when_its_delay_is_over(
    server: FerryServer, scripted: str, ledger: Ledger, delay_ms: int
) -> None:
    # Given an idle model
    waits_ms: list[float] = []
    batches: list[list[list[str]]] = []
    with (
        server.model(
            scripted, f"partial-{delay_ms}", batch_size=BATCH_SIZE, max_batch_delay=delay_ms
        ) as model,
        Clients(server.inference, 3) as clients,
    ):
        measure(clients, ledger, f"/predictions/{model}", 3, 0.0)
        gc.collect()

        # When three requests come, again and again
        for _ in range(TRIES):
            found, first_ms, _ = measure(clients, ledger, f"/predictions/{model}", 3, 0.0)
            batches.append(found)
            waits_ms.append(first_ms)

    # Then each three are one batch, which runs when the first of them has waited for the delay
    report(f"delay {delay_ms} ms, 3 requests: first sent to run", waits_ms)
    assert [len(found) for found in batches] == [1] * TRIES
    assert all(len(found[0]) == 3 for found in batches)
    assert statistics.median(waits_ms) == pytest.approx(delay_ms, abs=TOLERANCE_MS)
    assert percentile(waits_ms, 0.99) == pytest.approx(delay_ms, abs=TOLERANCE_MS)


def test_batch_keeps_arrival_order_and_is_never_larger_than_allowed(
    server: FerryServer, scripted: str, ledger: Ledger
) -> None:
    # Given a model with batches of three
    with (
        server.model(scripted, "ordered", batch_size=3, max_batch_delay=30) as model,
        Clients(server.inference, 7) as clients,
    ):
        # When seven requests come one after the other while the first batch is busy
        bodies = ["sleep 0.1|0", *(f"{number}" for number in range(1, 7))]
        exchange = clients.ask(f"/predictions/{model}", bodies, spacing_s=0.004)

    # Then they run in their order in batches of three, three and one
    assert exchange.bodies == bodies
    assert [call.bodies for call in ledger.calls()] == [bodies[:3], bodies[3:6], bodies[6:]]


def test_batch_of_one_does_not_wait_for_more(
    server: FerryServer, scripted: str, ledger: Ledger
) -> None:
    # Given a model that does not batch but has a long delay
    with (
        server.model(scripted, "single", batch_size=1, max_batch_delay=2000) as model,
        Clients(server.inference, 1) as clients,
    ):
        # When a request comes
        exchange = clients.ask(f"/predictions/{model}", ["alone"])

    # Then it runs at once
    assert exchange.bodies == ["alone"]
    assert ledger.calls()[0].started_at - exchange.sent_at[0] < 0.5
