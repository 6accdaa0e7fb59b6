"""`ferry jobs` against a real server."""

import json
import os
import signal
import subprocess

import pytest
from click.testing import CliRunner

from ferry.main import main
from tests.e2e.ferry_process import FERRY
from tests.support import eventually

pytestmark = pytest.mark.slow

COUNT = 40


@pytest.fixture
def folder(tmp_path):
    """Files of which the one in the middle is held until the test lets go."""
    made = tmp_path / "inputs"
    made.mkdir()
    for number in range(COUNT):
        words = "hold|" if number == COUNT // 2 else ""
        (made / f"{number:02}.dat").write_text(f"{words}{tmp_path.name} {number}")
    return made


def addresses_of(server):
    return {"FERRY_MANAGEMENT_URL": server.management, "FERRY_INFERENCE_URL": server.inference}


def test_interrupted_submit_goes_on_where_it_was(server, scripted, ledger, folder, tmp_path):
    results = tmp_path / "results"

    def start(model):
        words = ["jobs", "submit", model, str(folder), "--out", str(results), "--in-flight", "8"]
        environment = {"PATH": os.environ["PATH"], **addresses_of(server)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([FERRY, *words], env=environment, text=True, **pipes)

    with server.model(scripted, "filed", batch_size=1) as model:
        # Given a folder of which some files are done, and one is being run
        first = start(model)
        held = (folder / f"{COUNT // 2:02}.dat").read_text()
        eventually(lambda: ledger.executions(held), 20)

        # When it is interrupted
        first.send_signal(signal.SIGINT)
        _, complaint = first.communicate(timeout=10)
        assert first.returncode == 130
        assert "The same command goes on there" in complaint
        assert "Traceback" not in complaint
        ages = {path.name: path.stat().st_mtime_ns for path in results.iterdir()}
        assert all(name.endswith(".dat.out") for name in ages)
        assert 0 < len(ages) < COUNT

        # And given again
        ledger.let_go()
        printed, _ = start(model).communicate(timeout=60)

        # Then all results are there, and nothing has run twice
        assert printed == (
            f"{COUNT - len(ages)} results written to {results}, {len(ages)} were there before.\n"
        )
        for path in folder.iterdir():
            assert (results / f"{path.name}.out").read_bytes() == path.read_bytes()
            assert ledger.executions(path.read_text()) == 1
        assert len(list(results.iterdir())) == COUNT
        assert {name: (results / name).stat().st_mtime_ns for name in ages} == ages

        # And a third time there is nothing to do
        printed, _ = start(model).communicate(timeout=60)
        assert printed.startswith(f"0 results written to {results}, {COUNT} were there")
        assert sum(len(call.bodies) for call in ledger.calls()) == COUNT


def test_jobs_are_listed_shown_cancelled_and_retried(server, scripted, ledger, tmp_path):
    def jobs(*words, exit_code=0):
        """Returns the output; what it complained about if it was to fail."""
        done = CliRunner().invoke(main, ["jobs", *words], env=addresses_of(server))
        assert done.exit_code == exit_code, done.stderr
        return done.stderr if exit_code else done.stdout

    with server.model(scripted, "filed", batch_size=1) as model:
        # Given a job that runs, and one that waits
        for name, text in {"held": "hold|x", "waiting": "y"}.items():
            (tmp_path / name).write_text(text)
        [sent] = json.loads(jobs("submit", model, str(tmp_path / "held"), "--json"))
        held = sent["job"]
        printed = jobs("submit", model, str(tmp_path / "waiting"))
        waiting = printed.split()[-1]
        assert str(tmp_path / "waiting") in printed
        eventually(lambda: json.loads(jobs("show", held))["status"] == "running")

        # When / Then
        complaint = jobs("result", held, exit_code=1)
        assert complaint == f"Error: job {held} is running: --wait waits for it\n"
        assert jobs("cancel", waiting) == f"Job {waiting} is cancelled.\n"
        assert "cancelled" in jobs("result", waiting, exit_code=1)
        listed = json.loads(jobs("list", "--model", model, "--status", "cancelled", "--json"))
        assert [job["id"] for job in listed] == [waiting]
        assert jobs("list", "--model", model, "--limit", "1").count(waiting) == 1

        # When it is tried again
        assert jobs("retry", waiting) == f"Job {waiting} is queued.\n"
        ledger.let_go()

        # Then
        assert jobs("result", waiting, "--wait") == "y"
        assert jobs("result", held, "--wait") == "hold|x"
        assert "HTTP 409" in jobs("retry", waiting, exit_code=1)
        assert json.loads(jobs("list", "--model", "nobody", "--json")) == []
        assert jobs("list", "--model", "nobody").startswith("No jobs.")
