"""The way of an ordinary prediction, there and back: how many of our files it passes.

A real server answers predictions one after the other while its ingress and its worker are profiled.
A file is on the way if its functions are called at least once for each prediction; what happens now
and then, like beats, is not. These numbers may fall, and not rise.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.serving import Serving, running
from tests.support import eventually

pytestmark = pytest.mark.slow  # a whole server

ROOT = Path(__file__).parents[2]
OURS = ("batching", "ingress", "workers", "ferry", "compat")
PREDICTIONS = 300

MOST_IN_INGRESS = 12
MOST_IN_ALL = 58

# Runs at the start of each process. The first signal begins the count, the second one writes it.
PROFILER = """
import collections, json, os, pathlib, signal, sys, threading

folder = pathlib.Path(os.environ["REQUEST_WAY"])
calls = collections.Counter()

def note(frame, event, _):
    if event == "call":
        calls[frame.f_code.co_filename] += 1

def toggle(*_):
    if toggle.is_counting:
        beside = folder / f"{os.getpid()}.tmp"
        beside.write_text(json.dumps(calls))
        beside.rename(folder / f"{os.getpid()}.json")
    else:
        calls.clear()
        (folder / f"{os.getpid()}.counting").touch()
    toggle.is_counting = not toggle.is_counting

toggle.is_counting = False
signal.signal(signal.SIGUSR1, toggle)
threading.setprofile(note)
sys.setprofile(note)
(folder / f"{os.getpid()}.ready").touch()
"""


def profiled(folder: Path) -> dict[str, int]:
    """Returns file -> calls of all processes of a server, over PREDICTIONS predictions."""
    (folder / "sitecustomize.py").write_text(PROFILER)
    (folder / "model.py").write_text("def predict(batch):\n    return batch\n")
    path = os.pathsep.join([str(folder), str(ROOT)])
    serving = Serving(folder, folder / "model.py", PYTHONPATH=path, REQUEST_WAY=str(folder))
    with running(serving):
        predict(serving, PREDICTIONS)
        processes = signalled(folder, "counting")
        predict(serving, PREDICTIONS)
        assert signalled(folder, "json") == processes
    calls: dict[str, int] = {}
    for file in folder.glob("*.json"):
        for name, count in json.loads(file.read_text()).items():
            calls[name] = calls.get(name, 0) + count
    return calls


def predict(serving: Serving, count: int) -> None:
    for number in range(count):
        assert serving.predict("model", b"%d" % number).content == b"%d" % number


def signalled(folder: Path, suffix: str) -> set[str]:
    """Returns the profiled processes, each of which has taken the signal."""
    processes = {file.stem for file in folder.glob("*.ready") if Path("/proc", file.stem).exists()}
    for process in processes:
        os.kill(int(process), signal.SIGUSR1)
    done = {f"{process}.{suffix}" for process in processes}
    eventually(lambda: done <= {file.name for file in folder.iterdir()}, 20)
    return processes


def test_an_ordinary_prediction_passes_few_of_our_files(tmp_path):
    # Given / When
    calls = profiled(tmp_path)
    # Then
    way = []
    for name, count in calls.items():
        path = Path(name)
        if path.is_relative_to(ROOT) and count >= PREDICTIONS:
            relative = path.relative_to(ROOT)
            if relative.parts[0] in OURS:
                way.append(f"{relative} {count / PREDICTIONS:.1f}")
    told = "\n".join(sorted(way))
    print(told)  # noqa: T201  (for docs/architecture.md)
    in_ingress = [line for line in way if line.startswith("ingress/")]
    assert any(line.startswith("ingress/http1/") for line in way), told
    assert any(line.startswith("workers/handling/") for line in way), told
    assert len(in_ingress) <= MOST_IN_INGRESS, told
    assert len(way) <= MOST_IN_ALL, told
