"""`ferry.Client` and `ferry.AsyncClient` against a real server."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import ferry
from tests.e2e.archives import Ledger
from tests.e2e.ferry_process import FerryServer
from tests.support import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def model(server: FerryServer, scripted: str, ledger: Ledger) -> Iterator[str]:
    """The scripted model with one worker, which takes one request at a time."""
    with server.model(scripted, "asked", batch_size=1) as name:
        yield name


@pytest.fixture
def client(server: FerryServer) -> Iterator[ferry.Client]:
    with ferry.Client(server.inference) as made:
        yield made


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


def test_errors_are_told_apart(client, model):
    failed = client.submit(model, b"raise value|x")
    with pytest.raises(ferry.PredictionFailed) as caught:
        failed.result()
    assert (caught.value.status, caught.value.job_id) == (503, failed.id)
    assert failed.wait().state.error is not None
    with pytest.raises(ferry.PredictionFailed):
        client.predict(model, b"raise memory|x")
    with pytest.raises(ferry.NotFound):
        client.submit("nobody", b"x")
    with pytest.raises(ferry.NotFound):
        client.job("0" * 32)
    with pytest.raises(ferry.NotFound):
        client.job("../ping")
    with pytest.raises(ferry.BadRequest, match="60 to 604800"):
        client.submit(model, b"x", result_ttl_s=5)
    client.submit(model, b"x", idempotency_key="two")
    with pytest.raises(ferry.Conflict):
        client.submit(model, b"y", idempotency_key="two")


def test_cancelled_job_has_no_result(client, model, ledger):
    held, waiting = client.submit(model, b"hold|x"), client.submit(model, b"y")
    assert waiting.cancel().status == "cancelled"
    with pytest.raises(ferry.ResultGone):
        waiting.result()
    ledger.let_go()
    assert held.result().content == b"hold|x"
    assert ledger.executions("y") == 0


async def test_client_of_an_event_loop_does_the_same(server, model, ledger):
    async with ferry.AsyncClient(server.inference) as client:
        job = await client.submit(model, b"hold|x")

        async def is_running() -> bool:
            return (await job.refresh()).status == "running"

        while not await is_running():
            pass
        with pytest.raises(ferry.WaitTimeout):
            await job.wait(0.2)
        ledger.let_go()
        assert (await job.result()).content == b"hold|x"
        inputs = [b"%d" % number for number in range(30)]
        found = [one.content async for one in client.map(model, inputs, in_flight=4)]
        assert found == inputs
        assert (await client.predict(model, b"text")).text == "text"
        with pytest.raises(ferry.NotFound):
            await (await client.submit("nobody", b"x")).result()


def test_map_keeps_order_and_its_limit(client, model, ledger):
    # Given the first input that takes longest, and one that fails
    texts = ["hold|0", "1", "raise value|2", *map(str, range(3, 40))]
    taken: list[str] = []
    finished: list[int] = []

    def each() -> Iterator[bytes]:
        for one in texts:
            taken.append(one)
            yield one.encode()

    # When
    found = client.map(model, each(), in_flight=8, return_errors=True, on_progress=finished.append)
    with ThreadPoolExecutor(1) as pool:
        letting_go = pool.submit(lambda: eventually(ledger.calls, 10) and ledger.let_go())
        first = next(found)
        letting_go.result()

    # Then
    assert isinstance(first, ferry.Prediction)
    assert (first.text, taken) == ("hold|0", texts[:8])
    rest = list(found)
    assert isinstance(rest[1], ferry.PredictionFailed)
    found_texts = [one.text for one in rest if isinstance(one, ferry.Prediction)]
    assert found_texts == [one for one in texts[1:] if one != "raise value|2"]
    assert finished == list(range(1, 41))


def test_map_raises_the_first_error_and_cancels_what_is_open(client, server, model, ledger):
    # Given an input that fails, before one that keeps the only worker busy
    inputs = ["raise value|0", "hold|1", *map(str, range(2, 9))]

    def each() -> Iterator[bytes]:
        for count, one in enumerate(inputs):
            eventually(lambda count=count: len(jobs()) >= before + count)
            yield one.encode()

    def jobs() -> list[str]:
        return [job["status"] for job in server.manage("GET", "jobs", model=model).json()["jobs"]]

    before = len(jobs())
    # When
    with pytest.raises(ferry.PredictionFailed):
        list(client.map(model, each(), in_flight=5))
    # Then
    statuses = jobs()
    assert statuses[: len(statuses) - before] == [*["cancelled"] * 4, "failed"]
    ledger.let_go()
    assert client.predict(model, b"next").content == b"next"
    assert sum(map(ledger.executions, inputs[2:])) == 0


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
