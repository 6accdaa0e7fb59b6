"""Register, describe and list in TorchServe's shapes."""

import pytest

from tests.e2e.archives import Ledger, make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer
from tests.support import eventually


@pytest.mark.slow
def test_synchronous_registration_answers_when_the_workers_are_ready(
    server: FerryServer, scripted: str
) -> None:
    with server.cleaned_up("waited"):
        # When a model is registered with two workers, waiting for them
        parameters = {"model_name": "waited", "initial_workers": 2, "synchronous": "true"}
        response = server.manage("POST", "models", url=scripted, **parameters)

        # Then they are ready when the answer is there
        assert response.status_code == 200
        text = 'Model "waited" Version: 1.0 registered with 2 initial workers'
        assert response.json() == {"status": text}
        assert len(server.worker_pids("waited")) == 2
        assert server.predict("waited", b"hello").text == "hello"


@pytest.mark.slow
def test_asynchronous_registration_answers_202_before_the_workers_are_ready(
    server: FerryServer,
) -> None:
    # Given a model that takes two seconds to load
    archive, _ = make_scripted(server.store, "sluggish", load_delay="2")
    with server.cleaned_up("sluggish"):
        # When it is registered without waiting
        parameters = {"initial_workers": 1, "synchronous": "false"}
        response = server.manage("POST", "models", url=archive, **parameters)

        # Then the answer comes first, while describe shows a worker that is not ready yet
        assert response.status_code == 202
        assert response.json() == {"status": "Processing worker updates..."}
        assert server.worker_pids("sluggish") == []

        # And a request that comes meanwhile waits for the worker
        assert server.predict("sluggish", b"patient").text == "patient"
        assert len(server.worker_pids("sluggish")) == 1


@pytest.mark.slow
def test_describe_shows_who_waits(server: FerryServer, scripted: str, ledger: Ledger) -> None:
    # Given a worker that is busy with the first of five requests
    with (
        server.model(scripted, "crowded", batch_size=1, max_batch_delay=0),
        Clients(server.inference, 1) as first,
        Clients(server.inference, 4) as others,
    ):
        first.send("/predictions/crowded", ["hold|"])
        eventually(ledger.calls)
        others.send("/predictions/crowded", ["behind it"] * 4)

        # When the model is described, then four wait
        eventually(lambda: server.describe("crowded")["jobQueueStatus"]["pendingRequests"] == 4, 5)
        queue = server.describe("crowded")["jobQueueStatus"]
        ledger.let_go()
        answers = first.receive(1) + others.receive(4)
        assert [answer.status for answer in answers] == [200] * 5
    assert queue["remainingCapacity"] + queue["pendingRequests"] == 100
