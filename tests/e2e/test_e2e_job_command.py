"""`ferry jobs` against a real server."""

import json
import os
import signal
import subprocess
from typing import Any

import pytest
from click.testing import CliRunner

from ferry.main import main
from tests.e2e.ferry_process import FERRY, FerryServer
from tests.support import eventually

pytestmark = pytest.mark.slow

COUNT = 40


class JobsCommand:
    """Runs `ferry jobs` against this server."""

    def __init__(self, server: FerryServer) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "FERRY_MANAGEMENT_URL": server.management,
            "FERRY_INFERENCE_URL": server.inference,
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(FERRY), "jobs", *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, exit_code: int = 0) -> str:
        """Its output; what it complained about if it was to fail. Runs in this process."""
        done = CliRunner().invoke(main, ["jobs", *words], env=self._environment)
        assert done.exit_code == exit_code, done.stderr
        return done.stderr if exit_code else done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))


@pytest.fixture
def jobs(server):
    return JobsCommand(server)


@pytest.fixture
def model(server, scripted, ledger):
    """The scripted model with one worker, which takes one request at a time."""
    with server.model(scripted, "filed", batch_size=1) as name:
        yield name


@pytest.fixture
def folder(tmp_path):
    """Files of which the one in the middle is held until the test lets go."""
    made = tmp_path / "inputs"
    made.mkdir()
    for number in range(COUNT):
        words = "hold|" if number == COUNT // 2 else ""
        (made / f"{number:02}.dat").write_text(f"{words}{tmp_path.name} {number}")
    return made


def test_interrupted_submit_goes_on_where_it_was(jobs, model, ledger, folder, tmp_path):
    # Given a folder of which some files are done, and one is being run
    held = (folder / f"{COUNT // 2:02}.dat").read_text()
    results = tmp_path / "results"
    words = ("submit", model, str(folder), "--out", str(results), "--in-flight", "8")
    first = jobs.start(*words)
    eventually(lambda: ledger.executions(held), 20)

    # When it is interrupted
    first.send_signal(signal.SIGINT)
    _, complaint = first.communicate(timeout=10)
    assert first.returncode == 130
    assert "The same command goes on there" in complaint
    assert "Traceback" not in complaint
    done = {path.name for path in results.iterdir()}
    assert 0 < len(done) < COUNT
    ages = {path.name: path.stat().st_mtime_ns for path in results.iterdir()}

    # And given again
    ledger.let_go()
    printed = jobs.run(*words)

    # Then all results are there, and nothing has run twice
    assert printed == (
        f"{COUNT - len(done)} results written to {results}, {len(done)} were there before.\n"
    )
    for path in folder.iterdir():
        assert (results / f"{path.name}.out").read_bytes() == path.read_bytes()
        assert ledger.executions(path.read_text()) == 1
    assert len(list(results.iterdir())) == COUNT
    assert {name: (results / name).stat().st_mtime_ns for name in done} == ages

    # And a third time there is nothing to do
    assert jobs.run(*words).startswith(f"0 results written to {results}, {COUNT} were there")
    assert sum(len(call.bodies) for call in ledger.calls()) == COUNT


def test_jobs_are_listed_shown_cancelled_and_retried(jobs, model, ledger, tmp_path):
    # Given a job that runs, one that waits and one that fails
    texts = {"held": "hold|x", "waiting": "y"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    [held] = jobs.json("submit", model, str(tmp_path / "held"))
    printed = jobs.run("submit", model, str(tmp_path / "waiting"))
    waiting = printed.split()[-1]
    assert str(tmp_path / "waiting") in printed
    eventually(lambda: json.loads(jobs.run("show", held["job"]))["status"] == "running")

    # When / Then
    complaint = jobs.run("result", held["job"], exit_code=1)
    assert complaint == f"Error: job {held['job']} is running: --wait waits for it\n"
    assert jobs.run("cancel", waiting) == f"Job {waiting} is cancelled.\n"
    assert "cancelled" in jobs.run("result", waiting, exit_code=1)
    listed = jobs.json("list", "--model", model, "--status", "cancelled")
    assert [job["id"] for job in listed] == [waiting]
    assert jobs.run("list", "--model", model, "--limit", "1").count(waiting) == 1

    # When it is tried again
    assert jobs.run("retry", waiting) == f"Job {waiting} is queued.\n"
    ledger.let_go()

    # Then
    assert jobs.run("result", waiting, "--wait") == "y"
    assert jobs.run("result", held["job"]) == "hold|x"
    assert "HTTP 409" in jobs.run("retry", waiting, exit_code=1)
    assert jobs.json("list", "--model", "nobody") == []
    assert jobs.run("list", "--model", "nobody").startswith("No jobs.")
