"""Records what TorchServe answers with the handlers of the corpus.

    python -m tests.handlers.record [ARCHIVE ...]

With names of archives, their answers are recorded and all others stay. A recording is never edited.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.servers.installed import TORCHSERVE_VERSION, write_captum
from tests.conformance.torchserve import torchserve
from tests.handlers.driving import Answers, Server, drive
from tests.support import eventually
from tests.unit.workers.archives.wheels import offline, write_wheel

RECORDING = Path(__file__).with_name("recorded.json")
METRICS_TIMEOUT_S = 120.0
CONFIG = """\
enable_model_api=true
disable_token_authorization=true
disable_system_metrics=true
install_py_dep_per_model=true
metrics_mode=prometheus
model_metrics_auto_detect=true
"""


def main(names: Sequence[str]) -> int:
    """Writes the recording anew, or the part of these archives; returns the exit code."""
    console = Console()
    # A short name: unix sockets below it have paths of at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="ts-") as name:
        folder = Path(name)
        (folder / "store").mkdir()
        write_captum(folder / "modules")
        write_wheel(folder / "wheels")
        environment = offline(folder / "wheels") | {"PYTHONPATH": str(folder / "modules")}
        with torchserve(folder, CONFIG, environment) as ports:
            roles = ("inference", "management", "metrics")
            server = Server(*(f"http://127.0.0.1:{ports[role]}" for role in roles))
            lines: list[str] = []

            def on_archive(name: str) -> None:
                console.print(name)
                if name == "refusing":  # in one group with `measured`, and after it
                    lines[:] = eventually(server.scrape, METRICS_TIMEOUT_S)

            answers = drive(server, folder / "store", on_archive, names)
    _write(answers, lines, names)
    console.print(f"{len(answers)} answers recorded in {RECORDING}", highlight=False)
    return 0


def _write(answers: Answers, metrics: list[str], names: Sequence[str]) -> None:
    if names:
        recorded = json.loads(RECORDING.read_text(encoding="utf-8"))
        answers, metrics = {**recorded["answers"], **answers}, recorded["metrics"]
    document = {"torchserve": TORCHSERVE_VERSION, "answers": answers, "metrics": metrics}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    RECORDING.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
