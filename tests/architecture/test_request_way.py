"""The way of an ordinary prediction, and of a job, there and back: how many of our files it passes.

A real server answers them one after the other while its processes are profiled. A file is on
the way if its functions are called in each round, and as often as there are requests in one.
Beats and the like are not: what an idle server calls in the time of a round is taken off, as a
round may be long on a busy machine. These numbers may fall, and not rise.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from tests.e2e.ferry_process import running
from tests.e2e.serving import Serving
from tests.support import eventually

pytestmark = pytest.mark.slow  # a whole server

ROOT = Path(__file__).parents[2]
OURS = ("batching", "ingress", "workers", "ferry", "compat")
PREDICTIONS, ROUNDS = 20, 15
IDLE_S = 3.0

MOST_IN_INGRESS = 8
MOST_IN_ALL = 29

# Runs at the start of each process. Whenever the file `asked` has another number, a thread writes
# how often the functions of each file have been called.
PROFILER = """
import collections, json, os, pathlib, sys, threading, time

folder = pathlib.Path(os.environ["REQUEST_WAY"])
calls = collections.Counter()

def note(frame, event, _):
    if event == "call":
        calls[frame.f_code.co_filename] += 1

def answer():
    told = ""
    while True:
        asked = (folder / "asked").read_text()
        if asked != told:
            beside = folder / f"{os.getpid()}.beside"
            beside.write_text(json.dumps(dict(calls.copy())))
            beside.rename(folder / f"{os.getpid()}.calls-{asked}")
            told = asked
        time.sleep(0.02)

threading.Thread(target=answer, daemon=True).start()
threading.setprofile(note)
sys.setprofile(note)
"""


def calls_so_far(folder: Path, number: int) -> Counter[str]:
    """Returns file -> calls, of all processes that answer to this number."""
    beside = folder / "asked.beside"
    beside.write_text(str(number))
    beside.rename(folder / "asked")
    before = [file.stem for file in folder.glob(f"*.calls-{number - 1}")]
    living = [f"{pid}.calls-{number}" for pid in before if psutil.pid_exists(int(pid))]
    eventually(lambda: living and all((folder / name).exists() for name in living), 20)
    total: Counter[str] = Counter()
    for name in living:
        total.update(json.loads((folder / name).read_text()))
    return total


def predict(serving: Serving) -> bytes:
    return serving.predict("model", b"x").content


def predict_later(serving: Serving) -> bytes:
    """Submits a job, waits for it and fetches its result."""
    headers = {"Prefer": "respond-async"}
    job = serving.predict("model", b"x", headers=headers).json()
    return serving.http.get(job["result_url"], headers={"Prefer": "wait=20"}, timeout=30).content


def calls_in_rounds(folder: Path, ask: Callable[[Serving], bytes]) -> list[Counter[str]]:
    """Returns file -> calls of a server's processes, for each round, beyond an idle one's."""
    (folder / "sitecustomize.py").write_text(PROFILER)
    (folder / "asked").write_text("0")
    (folder / "model.py").write_text("def predict(batch):\n    return batch\n")
    path = os.pathsep.join([str(folder), str(ROOT)])
    serving = Serving(folder, folder / "model.py", PYTHONPATH=path, REQUEST_WAY=str(folder))
    totals, times_s = [], []
    with running(serving):
        for round_number in range(ROUNDS + 1):
            for _ in range(PREDICTIONS):
                assert ask(serving) == b"x"
            totals.append(calls_so_far(folder, round_number + 1))
            times_s.append(time.monotonic())
        time.sleep(IDLE_S)  # what happens meanwhile is measured
        idle = calls_so_far(folder, ROUNDS + 2) - totals[-1]
        idle_s = time.monotonic() - times_s[-1]
    rounds = [later - earlier for earlier, later in pairwise(totals)]
    for calls, (start_s, end_s) in zip(rounds, pairwise(times_s), strict=True):
        calls.subtract({name: round(n / idle_s * (end_s - start_s)) for name, n in idle.items()})
    return rounds


@pytest.mark.parametrize(
    ("ask", "most_in_ingress", "most_in_all"),
    [(predict, MOST_IN_INGRESS, MOST_IN_ALL), (predict_later, 11, 36)],
    ids=["prediction", "job"],
)
def test_a_request_passes_few_of_our_files(tmp_path, ask, most_in_ingress, most_in_all):
    # Given / When
    rounds = calls_in_rounds(tmp_path, ask)
    # Then
    way = []
    for name in sorted(rounds[0]):
        least = min(calls[name] for calls in rounds) / PREDICTIONS
        if least > 1 / 2 and Path(name).is_relative_to(ROOT):
            path = Path(name).relative_to(ROOT)
            way += [f"{path} {least:.1f}"] if path.parts[0] in OURS else []
    told = "\n".join(way)
    print(told)  # noqa: T201  (for docs/architecture.md)
    in_ingress = [line for line in way if line.startswith("ingress/")]
    assert any(line.startswith("ingress/http1/") for line in way), told
    assert any(line.startswith("workers/handling/") for line in way), told
    assert len(in_ingress) <= most_in_ingress, told
    assert len(way) <= most_in_all, told
