"""A model's life: scaled, unregistered, its folder; what becomes of workers and requests."""

import os
import shutil
import signal
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.archives import Ledger, make_archive, make_scripted
from tests.e2e.clients import Clients
from tests.e2e.ferry_process import FerryServer, ferry_server
from tests.support import eventually
from tests.timing import assert_within
from tests.unit.models import NAMES, Convolved, picture, scripted, trained

pytestmark = pytest.mark.slow

ECHO = "def handle(data, context):\n    return [row['body'] for row in data or []]\n"
CLASSIFIER = """
from ts.torch_handler.image_classifier import ImageClassifier

class Classifier(ImageClassifier):
    pass
"""
# The supervisor, Redis, the ingress, the node, and the worker.
MOST_PROCESSES = 5


def test_server_with_one_worker_answers_and_has_five_processes(tmp_path: Path) -> None:
    # Given
    with ferry_server(tmp_path) as server:
        server.register(make_archive(server.store, "echo", {"handler.py": ECHO}))
        # When
        answer = server.predict("echo", b"hello")
        # Then
        assert (answer.status_code, answer.content) == (200, b"hello")
        # And what inspected the archive ends when no other one comes
        assert eventually(lambda: len(server.process.family()) <= MOST_PROCESSES, 30)


def test_scaling_up_and_down_to_none_changes_who_answers(
    server: FerryServer, scripted: str, ledger: Ledger
) -> None:
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
    server: FerryServer,
    scripted: str,
    ledger: Ledger,
    change: tuple[str, dict[str, Any]],
    refused: int,
) -> None:
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
# Whose files are all there, but for whom an earlier one is in the way.
MAKES = RENAMES.replace("os.rename", "print").replace("model.pt", "weights.pt")


@pytest.mark.parametrize("handler", [RENAMES, MAKES], ids=["renames", "makes a folder"])
def test_handler_that_changes_its_folder_serves_at_each_start(
    server: FerryServer, handler: str
) -> None:
    # Given
    files = {"handler.py": handler, "weights.pt": "heavy"}
    archive = make_archive(server.store, "changing", files)

    # When it is registered twice, under a second name meanwhile
    for _ in range(2):
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


def test_worker_keeps_the_folder_that_it_has_changed_when_another_one_starts(
    server: FerryServer,
) -> None:
    # Given
    archive = make_archive(server.store, "keeping", {"handler.py": RENAMES, "weights.pt": "heavy"})
    with server.model(archive, "keeping", batch_size=1):
        # When the second one needs a folder as it was unpacked
        server.manage("PUT", "models/keeping", min_worker=2, synchronous="true")

        # Then both read what they have renamed
        assert len(server.worker_pids("keeping")) == 2
        with Clients(server.inference, 8) as clients:
            clients.send("/predictions/keeping", ["x"] * 8)
            answers = [(answer.status, answer.body) for answer in clients.receive(8)]
        assert answers == [(200, b"heavy")] * 8


def test_node_clears_its_disk_of_what_was_not_needed_for_long(tmp_path: Path) -> None:
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


def test_network_is_timed_when_it_is_loaded_first_and_not_again(tmp_path: Path) -> None:
    # Given TorchScript on two threads, whatever the machine has
    environment = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    with ferry_server(tmp_path, environment=environment) as server:
        files = {
            "handler.py": CLASSIFIER,
            "model.pt": scripted(trained(Convolved)),
            "index_to_name.json": NAMES,
        }
        archive = make_archive(
            server.store, "network", files, config="prepare: true", serializedFile="model.pt"
        )
        with server.model(archive, "network", batch_size=4):
            first = server.predict("network", picture()).json()

        # When
        with server.model(archive, "network", batch_size=4):
            second = server.predict("network", picture()).json()

        # Then
        server.process.wait_for_line("measured at an earlier load")
        log = server.process.log_path.read_text()
    assert log.count("timing 4 batches of 4") == 1
    assert second == pytest.approx(first)


def _handler(word: str) -> dict[str, bytes | str]:
    return {"handler.py": f"def handle(data, context):\n    return [{word!r}] * len(data or [])\n"}


def _swap(link: Path, target: str) -> None:
    """Makes the link lead to another place at once, as Kubernetes does."""
    new = link.with_name("..data_tmp")
    new.symlink_to(target)
    new.rename(link)


def test_archives_behind_links_of_the_operator_are_served(
    server: FerryServer, tmp_path: Path
) -> None:
    # Given a volume as Kubernetes mounts it, and a model's folder on another disk
    for generation, word in (("..2026_1", "old"), ("..2026_2", "new")):
        (server.store / generation).mkdir()
        make_archive(server.store / generation, "mounted", _handler(word))
    _swap(server.store / "..data", "..2026_1")
    (server.store / "mounted.mar").symlink_to("..data/mounted-1.0.mar")
    with zipfile.ZipFile(tmp_path / make_archive(tmp_path, "elsewhere", _handler("far"))) as files:
        files.extractall(tmp_path / "folder")
    (server.store / "elsewhere").symlink_to(tmp_path / "folder")

    # When / Then
    with server.model("mounted.mar", "mounted"), server.model("elsewhere", "elsewhere"):
        assert (server.predict("mounted").text, server.predict("elsewhere").text) == ("old", "far")

        # When the volume is updated, what was registered is served on
        _swap(server.store / "..data", "..2026_2")
        shutil.rmtree(server.store / "..2026_1")
        assert server.manage("PUT", "models/mounted", min_worker=2, synchronous="true").ok
        assert server.predict("mounted").text == "old"

    # Then the next registration finds the new archive
    with server.model("mounted.mar", "mounted"):
        assert server.predict("mounted").text == "new"

    # And a client's own words lead nowhere
    for url in (f"{tmp_path}/folder", "../folder", "..data/mounted-1.0.mar", "elsewhere/../x"):
        assert server.manage("POST", "models", url=url).status_code == 404
