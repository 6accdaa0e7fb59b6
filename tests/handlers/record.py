"""Records what TorchServe answers with the handlers of the corpus.

    python -m tests.handlers.record

Needs Java and, the first time, a package index: TorchServe is installed into an environment of its
own under `.bench/`. The recording is never edited.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.child import Child
from benchmarks.servers import free_ports
from benchmarks.torchserve_env import TORCHSERVE_VERSION, torchserve_python, write_captum
from tests.handlers.driving import Answers, Server, drive
from tests.support import eventually
from tests.unit.workers.archives.wheels import offline, write_wheel

RECORDING = Path(__file__).with_name("recorded.json")
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0


def main() -> int:
    """The recording is written anew; returns the exit code."""
    console = Console()
    python = torchserve_python(ROOT / ".bench")
    # A short name: unix sockets below it have paths of at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="ts-") as name:
        folder = Path(name)
        child, server = _start(python, folder)
        lines: list[str] = []

        def on_archive(name: str) -> None:
            console.print(name)
            if name == "refusing":  # in one group with `measured`, and after it
                lines[:] = eventually(server.scrape, START_TIMEOUT_S)

        try:
            answers = drive(server, folder / "store", on_archive)
        except BaseException:
            console.print(child.log_tail(), markup=False, highlight=False)
            raise
        finally:
            child.stop(whole_group=True)
    _write(answers, lines)
    console.print(f"{len(answers)} answers recorded in {RECORDING}", highlight=False)
    return 0


def _start(python: Path, folder: Path) -> tuple[Child, Server]:
    (folder / "store").mkdir()
    write_captum(folder / "modules")
    write_wheel(folder / "wheels")
    inference, management, metrics, *grpc = free_ports(5)
    properties = {
        "inference_address": f"http://127.0.0.1:{inference}",
        "management_address": f"http://127.0.0.1:{management}",
        "metrics_address": f"http://127.0.0.1:{metrics}",
        "grpc_inference_port": grpc[0],
        "grpc_management_port": grpc[1],
        "model_store": folder / "store",
        "enable_model_api": "true",
        "disable_token_authorization": "true",
        "disable_system_metrics": "true",
        "install_py_dep_per_model": "true",
        "metrics_mode": "prometheus",
        "model_metrics_auto_detect": "true",
    }
    config = folder / "config.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command = [str(python), "-m", "ts.model_server", "--start", "--foreground", "--ncs"]
    places = dict.fromkeys(("TEMP", "TMPDIR", "LOG_LOCATION", "METRICS_LOCATION"), str(folder))
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TS_")}
    environment |= places | offline(folder / "wheels") | {"PYTHONPATH": str(folder / "modules")}
    child = Child([*command, "--ts-config", str(config)], environment, folder)
    child.start()
    try:
        eventually(lambda: "Model server started" in _log(folder), START_TIMEOUT_S)
    except BaseException:
        child.stop(whole_group=True)
        raise
    addresses = (f"http://127.0.0.1:{port}" for port in (inference, management, metrics))
    return child, Server(*addresses)


def _log(folder: Path) -> str:
    return (folder / "server.log").read_text(errors="replace")


def _write(answers: Answers, metrics: list[str]) -> None:
    document = {"torchserve": TORCHSERVE_VERSION, "answers": answers, "metrics": metrics}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    RECORDING.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
