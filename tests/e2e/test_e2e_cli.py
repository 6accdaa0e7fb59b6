"""`ferry`'s own commands: a first model never misleads, a wrong address is named, Ctrl-C ends."""

import contextlib
import json
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ferry as ferry_package
from tests.e2e.archives import make_archive, make_scripted
from tests.e2e.ferry_process import FERRY, FerryServer
from tests.support import eventually
from tests.timing import assert_within

ENDS_S = 0.5

pytestmark = pytest.mark.slow


class Command:
    """Runs `ferry` against this server."""

    def __init__(self, server: FerryServer) -> None:
        self._environment = {
            "PATH": f"{FERRY.parent}:/usr/bin:/bin",
            "COLUMNS": "120",
            "FERRY_MANAGEMENT_URL": server.management,
            "FERRY_INFERENCE_URL": server.inference,
        }

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.shell(shlex.join(["ferry", *map(str, words)]))

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", line],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextlib.contextmanager
    def begun(self, *words: str | Path) -> Iterator["subprocess.Popen[str]"]:
        process = subprocess.Popen(
            [str(FERRY), *map(str, words)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def ferry(server: FerryServer) -> Command:
    return Command(server)


def test_registered_model_is_asked_by_the_printed_line_listed_scaled_and_unregistered(
    server: FerryServer, ferry: Command, tmp_path: Path
) -> None:
    # Given an archive that says nothing of workers and batches
    archive, _ = make_scripted(server.store, "plain")
    (tmp_path / "it's.txt").write_text("hello")

    # When it is registered without options
    with server.cleaned_up("plain"):
        done = ferry.run("models", "register", archive)

        # Then it serves in batches
        assert done.returncode == 0, done.stderr
        [status, step] = done.stdout.splitlines()
        assert status == 'Model "plain" Version: 1.0 registered with 1 initial workers'
        described = server.describe("plain")
        assert (described["batchSize"], described["batchPolicy"]) == (8, "adaptive")

        # And the line that is printed asks it
        line = step.removeprefix("Ask it: ").replace("FILE", shlex.quote(f"{tmp_path}/it's.txt"))
        assert ferry.shell(f"{line} -s").stdout == "hello"

        # And it is listed and described, for people and for machines
        assert {"modelName": "plain", "modelUrl": archive} in ferry.json("models", "list")
        [version] = ferry.json("models", "describe", "plain")
        assert version == server.describe("plain")
        assert str(version["workers"][0]["pid"]) in ferry.run("models", "describe", "plain").stdout

        # When it is scaled, and unregistered
        ferry.run("models", "scale", "plain", "--min-worker", "2")
        assert len(server.worker_pids("plain")) == 2
        done = ferry.run("models", "unregister", "plain")

        # Then it is gone
        assert done.stdout == 'Model "plain" unregistered\n'
        assert server.manage("GET", "models/plain").status_code == 404


def test_model_without_workers_says_at_once_how_to_start_one(
    server: FerryServer, ferry: Command
) -> None:
    # Given
    archive, _ = make_scripted(server.store, "idle")
    with server.cleaned_up("idle"):
        done = ferry.run("models", "register", archive, "--initial-workers", "0")
        assert done.stdout.splitlines()[1] == "Start one: ferry models scale idle --min-worker 1"

        # When a program asks it
        started_s = time.monotonic()
        with (
            ferry_package.Client(server.inference) as client,
            pytest.raises(ferry_package.PredictionFailed) as refused,
        ):
            client.predict("idle", b"x")

        # Then it need not wait for a minute, and reads a command that works
        assert_within(time.monotonic() - started_s, 5)
        words, _, command = refused.value.message.partition(" Start one: ")
        assert words.startswith('Model "idle" has no worker to serve inference request.')
        assert ferry.shell(command).returncode == 0
        assert server.predict("idle", b"hello").text == "hello"


BROKEN = {
    "syntax": ("x = 1\ndef handle(data context):\n", {}, ['  File "handler.py", line 2']),
    "initialize": (
        "import deep.helper\nclass H:\n    def initialize(self, context):\n"
        "        deep.helper.load(context)\n    def handle(self, data, context): pass\n",
        {},
        [
            '  File "handler.py", line 4, in initialize',
            '  File "deep/helper.py", line 2, in load',
            "FileNotFoundError: [Errno 2] No such file or directory: 'weights.pt'",
        ],
    ),
    "startup": (
        "import time\ntime.sleep(60)\n",
        {"startup_timeout": "1"},
        ["did not load within startup_timeout of 1 s"],
    ),
    "exit": ("import os\nos._exit(7)\n", {}, ["exit status 7"]),
}
HELPER = "def load(context):\n    open(context.system_properties['model_dir'] + '/weights.pt')\n"


@pytest.mark.parametrize("name", BROKEN)
def test_why_a_handler_does_not_load_is_told_where_it_was_asked_for(
    server: FerryServer, ferry: Command, name: str
) -> None:
    # Given
    source, parameters, told = BROKEN[name]
    files = {"handler.py": source, "deep/__init__.py": "", "deep/helper.py": HELPER}
    archive = make_archive(server.store, f"broken-{name}", files)
    options = [f"--{key.replace('_', '-')}={value}" for key, value in parameters.items()]

    # When it is registered, from the command line and over HTTP
    done = ferry.run("models", "register", archive, *options)
    query = {"initial_workers": 1, **parameters}
    message = server.manage("POST", "models", url=archive, **query).json()["message"]

    # Then both say so in TorchServe's words, with the cause below
    first = f"Failed to start workers for model broken-{name} version: 1.0"
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == f"Error: {first}"
    assert done.stderr.endswith(" (HTTP 500)\n")
    assert message.splitlines()[0] == first
    for text in (done.stderr, message):
        assert all(f"\n{line}" in text for line in told)
        # And nothing of this server or this machine
        assert "workers/" not in text
        assert str(server.folder) not in text
    assert server.manage("GET", f"models/broken-{name}").status_code == 404


def interrupted(process: "subprocess.Popen[str]") -> str:
    started_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert_within(time.monotonic() - started_s, ENDS_S)
    return process.communicate()[1]


def test_interrupted_predictions_end_and_the_server_drops_the_rest(
    server: FerryServer, ferry: Command, tmp_path: Path
) -> None:
    # Given three files: the model has the first, and the others wait
    archive, ledger = make_scripted(server.store, "held")
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in files:
        path.write_text(f"hold|{path.name}")

    def waiting() -> int:
        return int(server.describe("held")["jobQueueStatus"]["pendingRequests"])

    with server.model(archive, "held"):
        words = ("predict", "held", *files, "--content-type", "image/png")
        with ferry.begun(*words) as it:
            eventually(lambda: waiting() == 2, 20)

            # When Ctrl-C is pressed, then the command ends at once, and tells
            assert "Stopped after 0 of 3 answers. The server finishes" in interrupted(it)
        # And that is so
        eventually(lambda: waiting() == 0, 20)
        ledger.let_go()
        assert server.predict("held", b"next").text == "next"
        assert sum(call.bodies != ["next"] for call in ledger.calls()) == 1
