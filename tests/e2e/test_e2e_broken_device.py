"""A kernel that fails poisons its whole process; only the request at fault notices."""

import pytest

from tests.e2e.archives import make_archive
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer
from tests.support import eventually

# As CUDA does: after one failed assertion every call in this process fails with the same text.
HANDLER = """
IS_BROKEN = []
def handle(data, context):
    if data is None:
        return None
    bodies = [bytes(row["body"]) for row in data]
    if b"assert" in bodies:
        IS_BROKEN.append(True)
    if IS_BROKEN:
        raise RuntimeError("CUDA error: device-side assert triggered")
    return bodies
"""


@pytest.mark.slow
def test_broken_device_fails_one_request_and_its_worker_is_replaced(server: FerryServer) -> None:
    # Given
    archive = make_archive(server.store, "device", {"handler.py": HANDLER})
    options = {"batch_size": 4, "max_batch_delay": 150, "initial_workers": 2}
    with server.model(archive, "device", **options) as model:
        pids = set(server.worker_pids(model))

        # When
        with Clients(server.inference, 4) as clients:
            exchange = clients.ask(f"/predictions/{model}", [b"a", b"assert", b"b", b"c"])

        # Then
        assert exchange.statuses == [200, 507, 200, 200]
        assert [exchange.bodies[place] for place in (0, 2, 3)] == ["a", "b", "c"]

        # And what comes later meets a process with a sound device
        assert server.predict(model, b"later").content == b"later"
        eventually(lambda: set(server.worker_pids(model)) - pids, 10)
