"""`ferry jobs submit` of a folder, interrupted and given again, against a real server."""

import os
import signal
import subprocess

import pytest

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


def test_interrupted_submit_goes_on_where_it_was(server, scripted, ledger, folder, tmp_path):
    results = tmp_path / "results"

    def start(model):
        words = ["jobs", "submit", model, str(folder), "--out", str(results), "--in-flight", "8"]
        addresses = {
            "FERRY_MANAGEMENT_URL": server.management,
            "FERRY_INFERENCE_URL": server.inference,
        }
        environment = {"PATH": os.environ["PATH"], **addresses}
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
        # An unfinished one may be there, too, which counts for nothing.
        done = [path for path in results.iterdir() if not path.name.startswith(".")]
        ages = {path.name: path.stat().st_mtime_ns for path in done}
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
