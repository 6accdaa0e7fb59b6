"""A worker dies under a batch: every request is answered once, by another worker."""

import os
import signal

import pytest

from tests.e2e.archives import Ledger
from tests.e2e.clients import TIME_TO_FILL_MS, Clients
from tests.e2e.ferry_process import FerryServer
from tests.support import eventually

BATCH_SIZE = 8
MAX_EXECUTIONS = 2

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


@pytest.mark.parametrize("workers", [1, 2], ids=["restarted worker", "another worker"])
def test_killed_worker_batch_is_answered_by_others_exactly_once(
    server: FerryServer, scripted: str, ledger: Ledger, workers: int
) -> None:
    bodies = ["hold|item 0", *(f"item {number}" for number in range(1, BATCH_SIZE))]
    with (
        server.model(
            scripted,
            f"mortal-{workers}",
            batch_size=BATCH_SIZE,
            max_batch_delay=TIME_TO_FILL_MS,
            initial_workers=workers,
        ) as model,
        Clients(server.inference, BATCH_SIZE) as clients,
    ):
        # Given eight requests in one batch that a worker is at
        pids = server.worker_pids(model)
        assert len(pids) == workers
        clients.send(f"/predictions/{model}", bodies)
        eventually(ledger.calls, 10)
        assert sorted(ledger.calls()[0].bodies) == sorted(bodies)
        victim = ledger.calls()[0].pid
        assert victim in pids

        # When that worker is killed
        os.kill(victim, signal.SIGKILL)
        ledger.let_go()
        answers = clients.receive(BATCH_SIZE)

        # Then each client gets the answer to its own request, and not a byte more
        assert [answer.status for answer in answers] == [200] * BATCH_SIZE
        assert [answer.body.decode() for answer in answers] == bodies
        assert clients.unasked(0.5) == 0

        # And nothing was run more than twice, after the kill alone and by another worker
        calls = ledger.calls()
        assert {ledger.executions(body) for body in bodies} == {MAX_EXECUTIONS}
        assert [len(call.bodies) for call in calls[1:]] == [1] * BATCH_SIZE
        assert victim not in {call.pid for call in calls[1:]}

        # And the dead worker is replaced
        eventually(lambda: len(server.worker_pids(model)) == workers, 10)
        assert victim not in server.worker_pids(model)


def test_worker_killed_while_idle_is_replaced_and_loses_nothing(
    server: FerryServer, scripted: str, ledger: Ledger
) -> None:
    with server.model(scripted, "idle-mortal", batch_size=2, max_batch_delay=5) as model:
        # Given an idle worker
        [victim] = server.worker_pids(model)

        # When it is killed and requests come at once
        os.kill(victim, signal.SIGKILL)
        with Clients(server.inference, 6) as clients:
            bodies = [f"item {number}" for number in range(6)]
            exchange = clients.ask(f"/predictions/{model}", bodies)

        # Then its successor answers them, each once
        assert exchange.statuses == [200] * 6
        assert exchange.bodies == bodies
        assert {ledger.executions(body) for body in bodies} == {1}
        assert victim not in {call.pid for call in ledger.calls()}


@pytest.mark.parametrize("end", ["segfault", "exit"])
def test_request_that_ends_its_worker_fails_alone(
    server: FerryServer, scripted: str, ledger: Ledger, end: str
) -> None:
    bodies = [f"good {number}" for number in range(BATCH_SIZE)]
    bodies[3] = f"{end}|poison"
    with (
        server.model(
            scripted, f"poison-{end}", batch_size=BATCH_SIZE, max_batch_delay=TIME_TO_FILL_MS
        ) as model,
        Clients(server.inference, BATCH_SIZE) as clients,
    ):
        # When a batch holds a request that takes the process down, or ends it as if all were well
        exchange = clients.ask(f"/predictions/{model}", bodies)

        # Then its neighbours are answered
        assert sorted(ledger.calls()[0].bodies) == sorted(bodies)
        poisoned = exchange.answers.pop(3)
        assert exchange.statuses == [200] * (BATCH_SIZE - 1)
        assert exchange.bodies == bodies[:3] + bodies[4:]

        # And it fails after its second death
        assert poisoned.status == 500
        assert b"Worker died." in poisoned.body
        assert ledger.executions(bodies[3]) == MAX_EXECUTIONS
