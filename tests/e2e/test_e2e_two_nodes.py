"""A second node joins through Redis alone, and two idle nodes still make one batch of eight."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.archives import make_scripted
from tests.e2e.clients import TIME_TO_FILL_MS, Clients
from tests.e2e.ferry_process import FerryProcess, FerryServer
from tests.support import eventually
from tests.topology.whole_suite import own_redis

TRIES = 25
JOIN_TIMEOUT_S = 15.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def redis_url() -> Iterator[str]:
    with own_redis() as url:
        yield url


@pytest.fixture
def shared_server(redis_url: str, tmp_path: Path) -> Iterator[FerryServer]:
    """`ferry up` with one node, on a Redis that others may use."""
    server = FerryServer(tmp_path, "--redis-url", redis_url)
    server.wait_started()
    try:
        yield server
        server.process.stop_cleanly()
    finally:
        server.process.kill()


def start_node(server: FerryServer, redis_url: str) -> FerryProcess:
    options = ["--redis-url", redis_url, "--model-store", str(server.store)]
    return FerryProcess(server.folder, ["node", *options])


def test_second_node_serves_registered_models_and_shares_their_batches(
    shared_server: FerryServer, redis_url: str
) -> None:
    # Given a registered model on one node
    archive, ledger = make_scripted(shared_server.store, "shared")
    shared_server.register(archive, batch_size=8, max_batch_delay=TIME_TO_FILL_MS)
    assert len(shared_server.worker_pids("shared")) == 1

    # When a second node is started, with no other command
    node = start_node(shared_server, redis_url)
    try:
        eventually(lambda: len(shared_server.worker_pids("shared")) == 2, JOIN_TIMEOUT_S)

        # Then describe lists the workers of both
        workers = shared_server.describe("shared")["workers"]
        assert [worker["status"] for worker in workers] == ["READY", "READY"]
        assert len({worker["node"] for worker in workers}) == 2

        # And eight simultaneous requests are one batch of eight, on either node
        sizes = []
        with Clients(shared_server.inference, 16) as clients:
            for number in range(TRIES):
                ledger.clear()
                bodies = [f"try {number} item {item}" for item in range(8)]
                assert clients.ask("/predictions/shared", bodies).bodies == bodies
                sizes.append([len(call.bodies) for call in ledger.calls()])
            assert sizes == [[8]] * TRIES

            # And both nodes work when there is work for two
            ledger.clear()
            clients.send("/predictions/shared", ["hold|"] * 16)
            eventually(lambda: len(ledger.calls()) == 2)
            ledger.let_go()
            assert {answer.status for answer in clients.receive(16)} == {200}
        pids = {worker["pid"] for worker in workers}
        assert {call.pid for call in ledger.calls()} == pids

        # When the second node is stopped
        node.stop_cleanly()
        assert node.log().splitlines()[-1].endswith(" stopped")

        # Then its worker leaves the description, and the first node goes on
        eventually(lambda: len(shared_server.worker_pids("shared")) == 1, JOIN_TIMEOUT_S)
        assert shared_server.predict("shared", b"still here").text == "still here"
    finally:
        node.kill()
