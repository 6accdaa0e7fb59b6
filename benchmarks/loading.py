"""How long a model takes from its registration to its first answer, beside TorchServe.

    python -m benchmarks.loading

Both servers are up; each model is registered with one worker and asked once, by the one and by the
other in turns. The archives are in the page cache; neither server has unpacked them before. Exit
code 0: every bar is reached; 1: one is missed; 2: it could not be measured.
"""

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.measuring.records import CACHE, Verdict, at_most, finish, parse, table_of
from benchmarks.servers.child import run_module
from benchmarks.servers.installed import torchserve_python
from benchmarks.servers.running import ServedModel, Server, Torchferry, TorchServe

# As `benchmarks.networks` writes them, and their batch sizes.
MODELS = {"resnet18": 1, "densenet161": 1, "resnet152": 1, "resnet152-scripted": 8}
MOST_TIMES = 1.0
# A busy machine takes minutes.
PATIENCE = {"FERRY_DEFAULT_STARTUP_TIMEOUT": "600"}

Seconds = dict[str, list[float]]


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], Iterator[Verdict]]:
    folder = CACHE / "loading"
    names = [*MODELS][:1] if options.short else [*MODELS]
    if missing := [name for name in names if not (folder / f"{name}.mar").exists()]:
        run_module("networks", "examples", folder, *missing)
    body = (folder / "photo.jpg").read_bytes()
    seconds: dict[str, Seconds] = {}
    for name in names:
        model = ServedModel(name, folder / f"{name}.mar", MODELS[name], 100)
        seconds |= in_turns(model, options.rounds, body)
        print(f"seconds: {seconds}", file=sys.stderr)
    title = "from a registration to the first answer"
    return {"measured": title, "rounds": options.rounds, "seconds": seconds}, verdicts(seconds)


def in_turns(model: ServedModel, rounds: int, body: bytes) -> dict[str, Seconds]:
    other_s, ours_s = [], []
    with (
        TorchServe(model, python=torchserve_python()) as other,
        Torchferry(model, settings=PATIENCE) as ours,
    ):
        for _ in range(rounds):
            other_s.append(load_again(other, model, body))
            ours_s.append(load_again(ours, model, body))
    return {model.name: {other.name: other_s, ours.name: ours_s}}


def load_again(server: Server, model: ServedModel, body: bytes) -> float:
    """Registers a registered model once more; returns the seconds until it has answered once."""
    server.unregister(model.name)
    if isinstance(server, Torchferry):
        # TorchServe deletes by itself; running workers keep the files that they have mapped.
        shutil.rmtree(server.folder / "up-0" / "work")
    started_s = time.monotonic()
    server.register_model(model)
    server.ask(model.name, body)
    return round(time.monotonic() - started_s, 2)


def verdicts(seconds: Mapping[str, Seconds]) -> Iterator[Verdict]:
    for name, times in seconds.items():
        other, ours = map(statistics.median, times.values())
        yield at_most(ours / other, MOST_TIMES, f"{name}: {{}} of TorchServe", "{:.2f} x")


def markdown(record: Mapping[str, Any]) -> str:
    rows = []
    for name, times in record["seconds"].items():
        other, ours = map(statistics.median, times.values())
        rows.append((name, f"{other:.1f}", f"{ours:.1f}", f"{ours / other:.2f}"))
    about = f"Seconds, medians of {record['rounds']}:\n\n"
    return about + table_of(("", "TorchServe", "torchferry", ""), rows)


if __name__ == "__main__":
    options = parse("loading", rounds=(5, 1))
    sys.exit(finish("loading", lambda: measure(options), markdown, is_short=options.short))
