"""How long a model takes from its registration to its first answer, beside TorchServe.

    python -m benchmarks.loading

Both servers are up; each model is registered with one worker and asked once, by the one and by the
other in turns. The archives are in the page cache; neither server has unpacked them before. One is
registered with a batch size of 8, too: as a model that torchferry has never loaded, whose batches
it times, and as one whose timing it remembers. Exit code 0: every bar is reached; 1: one is missed;
2: it could not be measured.
"""

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.measuring.records import CACHE, Verdict, at_most, finish, parse, told
from benchmarks.servers.child import run_module
from benchmarks.servers.installed import torchserve_python
from benchmarks.servers.running import ServedModel, Server, Torchferry, TorchServe

# As `benchmarks.networks` writes them.
SCRIPTED = "resnet152-scripted"
MODELS = ("resnet18", "alexnet", "densenet161", "resnet152", SCRIPTED)
BATCH_SIZE = 8
MOST_TIMES = 1.0

Seconds = dict[str, list[float]]


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], Iterator[Verdict]]:
    folder = CACHE / "loading"
    names = MODELS[:1] if options.short else MODELS
    if missing := [name for name in names if not (folder / f"{name}.mar").exists()]:
        run_module("networks", "examples", folder, *missing)
    body = (folder / "photo.jpg").read_bytes()
    seconds = {}
    for name in names:
        model = ServedModel(name, folder / f"{name}.mar", 1, 100)
        seconds[name] = in_turns(model, options.rounds, body)
    if SCRIPTED in names:
        model = replace(model, batch_size=BATCH_SIZE)
        label = f"{SCRIPTED}, batch size {BATCH_SIZE}"
        seconds[label] = in_turns(model, options.rounds, body)
        label = f"{label}, loaded before"
        seconds[label] = in_turns(model, options.rounds, body, is_known=True)
    title = "from a registration to the first answer"
    return {"measured": title, "rounds": options.rounds, "seconds": seconds}, verdicts(seconds)


def in_turns(model: ServedModel, rounds: int, body: bytes, *, is_known: bool = False) -> Seconds:
    with TorchServe(model, python=torchserve_python()) as other, Torchferry(model) as ours:
        servers: tuple[Server, ...] = (other, ours)
        seconds: Seconds = {server.name: [] for server in servers}
        for _ in range(rounds):
            for server in servers:
                forget(server, model, is_known=is_known)
                seconds[server.name].append(round(load_again(server, model, body), 2))
        return seconds


def forget(server: Server, model: ServedModel, *, is_known: bool) -> None:
    """Unregisters the model and deletes its files; what was measured of it stays if `is_known`."""
    server.unregister(model.name)
    if isinstance(server, Torchferry):
        # TorchServe deletes by itself; running workers keep the files that they have mapped.
        work = server.folder / "up-0" / "work"
        for folder in work.glob("*.*.*") if is_known else [work]:
            shutil.rmtree(folder)


def load_again(server: Server, model: ServedModel, body: bytes) -> float:
    """Registers the model; returns the seconds until it has answered once."""
    started_s = time.monotonic()
    server.register_model(model)
    server.ask(model.name, body)
    return time.monotonic() - started_s


def verdicts(seconds: Mapping[str, Seconds]) -> Iterator[Verdict]:
    for name, times in seconds.items():
        other, ours = map(statistics.median, times.values())
        yield at_most(ours / other, MOST_TIMES, f"{name}: {{}} of TorchServe", "{:.2f} x")


def markdown(record: Mapping[str, Any]) -> str:
    lines = [
        f"`python -m benchmarks.loading` at {told(record)}; medians of {record['rounds']}, load "
        f"average before: {record['load_average']}. Seconds:",
        "",
        "| | TorchServe | torchferry | |",
        "|---|---:|---:|---:|",
    ]
    for name, times in record["seconds"].items():
        other, ours = map(statistics.median, times.values())
        lines.append(f"| {name} | {other:.1f} | {ours:.1f} | {ours / other:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    options = parse("loading", rounds=(5, 1))
    sys.exit(finish("loading", lambda: measure(options), markdown, is_short=options.short))
