"""How long a model takes from its registration to its first answer, beside TorchServe.

    python -m benchmarks.loading

Both servers are up; each model is registered with one worker and asked once, by the one and by the
other in turns. The archives are in the page cache; neither server has unpacked them before. Exit
code 0: every bar is reached; 1: one is missed; 2: it could not be measured.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison.findings import Verdict
from benchmarks.measuring.records import CACHE, told
from benchmarks.measuring.reports import at_most, finish, positive, to_record
from benchmarks.servers.archive_servers import ArchiveServer, Torchferry, TorchServe
from benchmarks.servers.child import run_module
from benchmarks.servers.server import Job
from benchmarks.servers.torchserve_env import torchserve_python

MODELS = ("densenet161", "resnet-152", "resnet-152-scripted", "resnet-18", "alexnet", "mnist")
ROUNDS = 5
MOST_TIMES = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds by model: of each round, by server; and of each step of a worker, a median."""

    seconds: dict[str, dict[str, list[float]]]
    stages: dict[str, dict[str, float]]


def measure(names: Sequence[str], rounds: int, tree: Path | None) -> Found:
    """Loads each model that often with each server, then step by step without one.

    Args:
        names: of the models.
        rounds: how often each is loaded.
        tree: another working tree of torchferry, to be measured in TorchServe's place.
    """
    folder = CACHE / "loading"
    photo = folder / "photo.jpg"
    if not photo.exists():
        run_module("servers.loading_archives", folder)
    jobs = [Job(name, folder / f"{name}.mar", 1, 100) for name in names]
    return Found(
        {job.model_name: _measure_one(job, rounds, photo.read_bytes(), tree) for job in jobs},
        {job.model_name: _stages(job, rounds, photo) for job in jobs},
    )


def _measure_one(job: Job, rounds: int, body: bytes, tree: Path | None) -> dict[str, list[float]]:
    other = Torchferry(job, tree=tree) if tree else TorchServe(torchserve_python(CACHE), job)
    with other, Torchferry(job) as ours:
        servers: list[ArchiveServer] = [other, ours]
        found: dict[str, list[float]] = {server.name: [] for server in servers}
        for _ in range(rounds):
            for server in servers:
                found[server.name].append(round(server.load_anew(job, body), 2))
    return found


def _stages(job: Job, rounds: int, photo: Path) -> dict[str, float]:
    environment = os.environ | {"OMP_NUM_THREADS": str(job.threads)}
    words = ("servers.loading_stages", job.archive, photo)
    runs = [json.loads(run_module(*words, environment=environment)) for _ in range(rounds)]
    return {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}


def verdicts(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[Verdict]:
    """Returns how many times as long as beside it each model takes."""
    for name, seconds in found.items():
        other, ours = (statistics.median(times) for times in seconds.values())
        yield at_most(
            ours / other, MOST_TIMES, f"{name}: {{}} of {next(iter(seconds))}", "{:.2f} x"
        )


def markdown(record: Mapping[str, Any]) -> str:
    """Returns the origin and a table."""
    found: Mapping[str, Mapping[str, Sequence[float]]] = record["seconds"]
    servers = next(iter(found.values()))
    lines = [
        f"`python -m benchmarks.loading` at {told(record)}; medians of {record['rounds']}, load "
        f"average before: {record['load_average']}. Seconds:",
        "",
        f"| | {' | '.join(servers)} | |",
        "|---|---:|---:|---:|",
    ]
    for name, seconds in found.items():
        other, ours = (statistics.median(times) for times in seconds.values())
        lines.append(f"| {name} | {other:.1f} | {ours:.1f} | {ours / other:.2f} |")
    stages: Mapping[str, Mapping[str, float]] = record["stages"]
    steps = list(next(iter(stages.values())))
    lines += ["", f"| | {' | '.join(steps)} |", f"|---{'|---:' * len(steps)}|"]
    for name, times in stages.items():
        lines.append(f"| {name} | {' | '.join(f'{times[step]:.2f}' for step in steps)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything, prints and writes it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=positive, default=ROUNDS)
    parser.add_argument("--beside", type=Path, help="another working tree, for TorchServe")
    parser.add_argument("--short", action="store_true", help="leave the document as it is")
    options = parser.parse_args(arguments)
    load_average = round(os.getloadavg()[0], 2)

    def record() -> dict[str, Any]:
        found = measure(options.models, options.rounds, options.beside)
        about = {"rounds": options.rounds, "load_average": load_average, **asdict(found)}
        judged = list(verdicts(found.seconds))
        return to_record("from a registration to the first answer", about, judged)

    is_short = options.short or options.beside is not None
    return finish("loading", record, markdown, is_short=is_short)


if __name__ == "__main__":
    sys.exit(main())
