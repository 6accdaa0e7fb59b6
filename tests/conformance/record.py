"""Records what TorchServe answers to the list of cases: one JSON file per group.

    python -m tests.conformance.record [SCENE ...]

Two runs must give the same files; `normal_form.py` has a rule for everything that changes from run
to run. A recording is never edited.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.servers.installed import TORCHSERVE_VERSION
from tests.conformance.archives import fill_store
from tests.conformance.case_list import HERE, Case, load_scenes, properties_of
from tests.conformance.driving import Seen, drive
from tests.conformance.torchserve import torchserve
from tests.conformance.wire import Target

RECORDINGS = HERE / "recordings"


def main(arguments: Sequence[str]) -> int:
    """Records these scenes, or all, anew; returns the exit code."""
    console = Console()
    scenes = load_scenes()
    for scene in arguments or scenes:
        cases = scenes[scene]
        # A short name: unix sockets below it have paths of at most 107 characters.
        with tempfile.TemporaryDirectory(prefix="ts-") as name:
            seen = _record(scene, cases, Path(name), console)
        _write(RECORDINGS / scene, cases, seen)
        console.print(f"{len(cases)} cases recorded in {RECORDINGS / scene}", highlight=False)
    return 0


def _record(scene: str, cases: list[Case], folder: Path, console: Console) -> Seen:
    store = folder / "store"
    store.mkdir()
    fill_store(store, folder / "scratch")
    with torchserve(folder, properties_of(scene)) as ports:
        target = Target(ports, {"store": str(store)}, folder / "key_file.json")
        return drive(cases, target, lambda case: console.print(case.id, highlight=False))


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
