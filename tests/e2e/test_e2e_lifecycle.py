"""A model's life: scaled, unregistered, its folder; what becomes of workers and requests."""

import os
import signal
import time

import pytest

from tests.e2e.archives import make_archive, make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import ferry_server
from tests.support import eventually
from tests.timing import assert_within

pytestmark = pytest.mark.slow

ECHO = "def handle(data, context):\n    return [row['body'] for row in data or []]\n"
# The supervisor, Redis, the ingress, the node, and the worker.
MOST_PROCESSES = 5


def test_server_with_one_worker_answers_and_has_five_processes(tmp_path):
    # Given
    with ferry_server(tmp_path) as server:
        server.register(make_archive(server.store, "echo", {"handler.py": ECHO}))
        # When
        answer = server.predict("echo", b"hello")
        # Then
        assert (answer.status_code, answer.content) == (200, b"hello")
        # And what inspected the archive ends when no other one comes
        assert eventually(lambda: len(server.process.family()) <= MOST_PROCESSES, 30)


def test_scaling_up_and_down_to_none_changes_who_answers(server, scripted, ledger):
    with server.model(scripted, "elastic", batch_size=1, max_batch_delay=0):
        # When the model is scaled up, waiting
        parameters = {"min_worker": 3, "synchronous": "true"}
        response = server.manage("PUT", "models/elastic", **parameters)

        # Then three workers are ready, and work at the same time
        assert response.status_code == 200
        assert response.json() == {"status": "Workers scaled to 3 for model: elastic"}
        pids = server.worker_pids("elastic")
        assert len(pids) == 3
        with Clients(server.inference, 3) as clients:
            clients.send("/predictions/elastic", ["hold|"] * 3)
            eventually(lambda: len(ledger.calls()) == 3)
            ledger.let_go()
            assert [answer.status for answer in clients.receive(3)] == [200] * 3
        assert {call.pid for call in ledger.calls()} == set(pids)

        # When it is scaled down without waiting
        response = server.manage("PUT", "models/elastic/1.0", min_worker=1)

        # Then that is said at once and comes true
        assert response.status_code == 202
        assert response.json() == {"status": "Processing worker updates..."}
        eventually(lambda: len(server.describe("elastic")["workers"]) == 1, 10)

        # When it is scaled to none
        parameters = {"min_worker": 0, "synchronous": "true"}
        response = server.manage("PUT", "models/elastic/1.0", **parameters)

        # Then requests are refused at once
        text = "Workers scaled to 0 for model: elastic, version: 1.0"
        assert (response.status_code, response.json()) == (200, {"status": text})
        refused = server.predict("elastic", b"late")
        assert refused.status_code == 503
        assert_within(refused.elapsed.total_seconds(), 1)

        # And served again after it is scaled up again
        server.manage("PUT", "models/elastic", min_worker=1, synchronous="true")
        assert server.predict("elastic", b"back").text == "back"


@pytest.mark.parametrize(
    ("change", "refused"),
    [(("PUT", {"min_worker": 0, "synchronous": "true"}), 503), (("DELETE", {}), 404)],
    ids=["scaled to none", "unregistered"],
)
def test_model_that_goes_answers_what_waits_and_leaves_no_worker(
    server, scripted, ledger, change, refused
):
    # Given a busy worker and requests that wait
    with (
        server.model(scripted, "leaving", batch_size=1, max_batch_delay=0),
        Clients(server.inference, 4) as clients,
    ):
        [pid] = server.worker_pids("leaving")
        clients.send("/predictions/leaving", ["hold stop|"] * 4)
        eventually(lambda: server.describe("leaving")["jobQueueStatus"]["pendingRequests"] == 3, 5)

        # When the model goes
        ledger.let_go()
        started = time.monotonic()
        method, parameters = change
        assert server.manage(method, "models/leaving", **parameters).status_code == 200
        answers = clients.receive(4)

        # Then each client has an answer: the one at work its own
        assert sorted(answer.status for answer in answers) == [200, refused, refused, refused]
        assert_within(time.monotonic() - started, 5)

        # And the worker is gone
        assert server.predict("leaving").status_code == refused
        assert not [line for line in server.process.family() if line.startswith(f"{pid} ")]


# Loads in a folder as it was unpacked, and in no other.
RENAMES = """
import os

def handle(data, context):
    if data is None:
        folder = context.system_properties["model_dir"]
        os.rename(f"{folder}/weights.pt", f"{folder}/model.pt")
        os.mkdir(f"{folder}/scratch")
        return
    return [open("model.pt").read()] * len(data)
"""


def test_handler_that_changes_its_folder_serves_at_each_start(server):
    # Given
    files = {"handler.py": RENAMES, "weights.pt": "heavy"}
    archive = make_archive(server.store, "changing", files)

    # When it is registered, under a second name, too, and again
    with server.model(archive, "changing"), server.model(archive, "changing-too"):
        # Then
        assert server.predict("changing").text == "heavy"
        assert server.predict("changing-too").text == "heavy"
    with server.model(archive, "changing"):
        # When a worker dies
        pids = server.worker_pids("changing")
        os.kill(pids[0], signal.SIGKILL)
        eventually(lambda: server.worker_pids("changing") not in (pids, []), 20)

        # Then
        assert server.predict("changing").text == "heavy"


@pytest.mark.long  # a server of its own
def test_node_clears_its_disk_of_what_was_not_needed_for_long(tmp_path):
    # Given a server with one model, and what was unpacked for another one
    work_dir = tmp_path / "work"
    with ferry_server(tmp_path, environment={"FERRY_UNUSED_FILES_KEPT_S": "60"}) as server:
        archive, _ = make_scripted(server.store, "current")
        server.register(archive)
        [needed] = [path for path in work_dir.iterdir() if len(path.name) > 64]
        unused = work_dir / ("0" * 64)
        unused.mkdir()
        # When both were used long ago, as far as the disk knows
        for path in (needed, unused):
            os.utime(path, (0, 0))
        # Then one goes, and the other one is marked as needed
        eventually(lambda: not unused.exists(), 10)
        eventually(lambda: needed.stat().st_mtime > 0, 10)
        assert server.predict("current", b"x").text == "x"
