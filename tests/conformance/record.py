"""Records what TorchServe answers to the list of cases: one JSON file per group.

    python -m tests.conformance.record [SCENE ...]

Needs Java and, the first time, a package index: TorchServe is installed into an environment of its
own under `.bench/`. Two runs must give the same files; what cannot be the same has a rule in
`normal_form.py`. A recording is never edited.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.child import Child
from benchmarks.servers import free_ports
from benchmarks.torchserve_env import TORCHSERVE_VERSION, torchserve_python
from tests.conformance.archives import fill_store
from tests.conformance.case_list import HERE, Case, load_scenes, properties_of
from tests.conformance.driving import Seen, drive
from tests.conformance.wire import Target
from tests.support import eventually

ROOT = HERE.parents[1]
RECORDINGS = HERE / "recordings"
START_TIMEOUT_S = 120.0


def main(arguments: Sequence[str]) -> int:
    """The recordings of these scenes, or of all, are written anew; returns the exit code."""
    console = Console()
    python = torchserve_python(ROOT / ".bench")
    scenes = load_scenes()
    for scene in arguments or scenes:
        cases = scenes[scene]
        # A short name: unix sockets below it have paths of at most 107 characters.
        with tempfile.TemporaryDirectory(prefix="ts-") as name:
            seen = _record(scene, cases, python, Path(name), console)
        _write(RECORDINGS / scene, cases, seen)
        console.print(f"{len(cases)} cases recorded in {RECORDINGS / scene}", highlight=False)
    return 0


def _record(scene: str, cases: list[Case], python: Path, folder: Path, console: Console) -> Seen:
    child, target = _start(scene, python, folder)
    try:
        return drive(cases, target, lambda case: console.print(case.id, highlight=False))
    except BaseException:
        console.print(child.log_tail(), markup=False, highlight=False)
        raise
    finally:
        child.stop(whole_group=True)


def _start(scene: str, python: Path, folder: Path) -> tuple[Child, Target]:
    store = folder / "store"
    store.mkdir()
    fill_store(store, folder / "scratch")
    names = ("inference", "management", "metrics")
    numbers = free_ports(5)
    ports = dict(zip(names, numbers, strict=False))
    properties = {f"{name}_address": f"http://127.0.0.1:{ports[name]}" for name in names}
    properties |= {
        "grpc_inference_port": str(numbers[3]),
        "grpc_management_port": str(numbers[4]),
        "model_store": str(store),
    }
    lines = "".join(f"{key}={value}\n" for key, value in properties.items())
    (folder / "config.properties").write_text(properties_of(scene) + lines)
    command = [str(python), "-m", "ts.model_server", "--start", "--foreground", "--ncs"]
    places = dict.fromkeys(("TEMP", "TMPDIR", "LOG_LOCATION", "METRICS_LOCATION"), str(folder))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TS_")}
    child = Child([*command, "--ts-config", "config.properties"], inherited | places, folder)
    child.start()
    try:
        eventually(lambda: "Model server started" in _log(folder), START_TIMEOUT_S)
    except BaseException:
        child.stop(whole_group=True)
        raise
    return child, Target(ports, {"store": str(store)}, folder / "key_file.json")


def _log(folder: Path) -> str:
    return (folder / "server.log").read_text(errors="replace")


def _write(folder: Path, cases: list[Case], seen: Seen) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for group in dict.fromkeys(case.group for case in cases):
        records: dict[str, Any] = {
            case.id: {"request": case.request(), "answers": seen[case.id]}
            for case in cases
            if case.group == group
        }
        document = {"torchserve": TORCHSERVE_VERSION, "cases": records}
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (folder / f"{group}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
