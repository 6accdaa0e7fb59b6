"""`ferry.Client` and `ferry.AsyncClient` against a real server."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import ferry
from tests.e2e.archives import Ledger
from tests.support import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def client(server):
    with ferry.Client(server.inference) as made:
        yield made


@pytest.fixture
def model(server, scripted, ledger):
    """Serves the scripted model by one worker, which takes one request at a time."""
    with server.model(scripted, "asked", batch_size=1) as name:
        yield name


def test_job_is_submitted_waited_for_and_its_result_fetched(client, model, ledger):
    # Given a job that runs
    job = client.submit(model, b"hold|x", idempotency_key="one")
    eventually(lambda: job.refresh().status == "running")
    with pytest.raises(ferry.WaitTimeout, match=job.id):
        job.wait(timeout_s=0.3)
    with pytest.raises(ferry.WaitTimeout):
        job.result(timeout_s=1)

    # When
    ledger.let_go()
    result = job.result()

    # Then the result is the synchronous answer, and any client finds it
    assert (result.status, result.content, result.request_id) == (200, b"hold|x", job.id)
    assert client.predict(model, b"hold|x").content == b"hold|x"
    assert job.wait().status == "succeeded"
    assert client.job(job.id).result().text == "hold|x"
    assert client.submit(model, b"hold|x", idempotency_key="one").id == job.id
    assert job.state.started_at is not None


@pytest.mark.chaos
@pytest.mark.parametrize(
    "count", [200, pytest.param(2000, marks=[pytest.mark.long, pytest.mark.timeout(180)])]
)
def test_map_returns_all_when_a_worker_is_killed_in_the_middle(
    client, server, scripted, ledger, count
):
    # Given
    middle = count // 2
    inputs = [str(number) for number in range(count)]
    inputs[middle] = f"hold|{middle}"
    with server.model(scripted, "mortal", batch_size=8, initial_workers=2) as model:

        def kill() -> None:
            victim = eventually(lambda: holder(ledger, inputs[middle]), 60)
            os.kill(victim, signal.SIGKILL)
            ledger.let_go()

        # When
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            bodies = [one.encode() for one in inputs]
            texts = [one.text for one in client.map(model, bodies, in_flight=64)]
            killing.result()
        # Then
        assert texts == inputs
        assert ledger.executions(inputs[middle]) == 2
        runs = [body for call in ledger.calls() for body in call.bodies]
        assert set(runs) == set(inputs)
        assert len(runs) <= count + 8  # no more than the dead worker's batch twice


def holder(ledger: Ledger, body: str) -> int:
    """The process that runs this body; 0 while there is none."""
    return next((call.pid for call in ledger.calls() if body in call.bodies), 0)
