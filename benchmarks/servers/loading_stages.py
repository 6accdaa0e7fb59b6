"""What a worker does from its start to its first answer, step by step, in one process.

    python -m benchmarks.servers.loading_stages ARCHIVE JPEG

prints one line of JSON: the seconds of each step.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from ts.context import RequestProcessor

import workers.handling.worker  # all that a worker imports before it loads a model
from batching.models.registration import ModelDefaults, spec_from_registration
from batching.settings.settings import Settings
from workers.archives.model_archive import find_unpacked, inspect_archive
from workers.handling.deferred_compiler import defer_compiler
from workers.handling.handlers import load_model
from workers.machine import Device

Timed = Callable[[str, Callable[[], Any]], Any]
STAGES = ("unpack", "interpreter", "torch", "torchvision", "load", "prepare", "first answer")


def run(archive: Path, photo: bytes) -> dict[str, float]:
    """Returns the seconds of each step."""
    # By the wall clock, because that is what the system keeps of a process's start.
    started_s = psutil.Process().create_time()
    seconds = {"interpreter": time.time() - started_s, "prepare": 0.0}  # noqa: TID251

    def timed(stage: str, step: Callable[[], Any]) -> Any:
        started_s = time.perf_counter()
        result = step()
        seconds[stage] = time.perf_counter() - started_s
        return result

    assert workers.handling.worker
    defer_compiler()
    timed("torch", lambda: import_module("torch"))
    handlers = timed("torchvision", lambda: import_module("ts.torch_handler.vision_handler"))
    prepare = handlers.prepare
    handlers.prepare = lambda *given: timed("prepare", lambda: prepare(*given))
    with tempfile.TemporaryDirectory(prefix="stages-") as folder:
        model = _load(archive, Path(folder), timed)
        timed("first answer", lambda: model.entry([{"body": photo}], model.context))
    seconds["load"] -= seconds["prepare"]
    return {stage: round(seconds[stage], 2) for stage in STAGES}


def _load(archive: Path, folder: Path, timed: Timed) -> Any:
    info = timed("unpack", lambda: inspect_archive(archive, archive.name, folder))
    spec = spec_from_registration({}, info, ModelDefaults())
    place = find_unpacked(info.sha256, folder)
    assert place is not None
    model = timed("load", lambda: load_model(spec, place, Device("cpu"), Settings()))
    model.context.request_processor = [RequestProcessor({})]
    return model


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())))
