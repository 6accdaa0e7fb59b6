"""A model in a loop in one process, without any server: what is left to gain.

    python -m benchmarks.bare_loop handler ARCHIVE JPEG BATCH_SIZE SECONDS
    python -m benchmarks.bare_loop forward ARCHIVE HAS_GPU SECONDS BATCH_SIZE...

`handler` runs the archive's handler, JPEGs in, the best classes out, and prints a LoadReport in one
line of JSON. `forward` runs the model alone on batches that lie on the device, prepared as the
server prepares it, and prints images per second by the size of the batch, in JSON. `compat/` has to
be on the path.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from ts.context import Context, RequestProcessor
from ts.torch_handler.image_classifier import ImageClassifier

from batching.models.registration import ModelDefaults, spec_from_registration
from batching.settings.settings import Settings
from benchmarks.measuring.load import LoadReport
from workers.archives.model_archive import inspect_archive, unpack_archive
from workers.handling.handlers import load_model
from workers.machine import Device


def run_handler(archive: Path, photo: bytes, batch_size: int, seconds: float) -> LoadReport:
    """Runs whole batches for at least that many seconds, after one that is not measured."""
    with tempfile.TemporaryDirectory(prefix="bare-") as folder:
        info = inspect_archive(archive, archive.name, Path(folder))
        spec = spec_from_registration({"batch_size": batch_size}, info, ModelDefaults())
        place = unpack_archive(archive, info.sha256, Path(folder))
        model = load_model(spec, place, Device("cpu"), Settings())
    model.context.request_processor = [RequestProcessor({}) for _ in range(batch_size)]
    times_s: list[float] = []
    while sum(times_s[1:]) < seconds:
        started_s = time.perf_counter()
        answers = model.entry([{"body": photo} for _ in range(batch_size)], model.context)
        times_s.append(time.perf_counter() - started_s)
        assert len(answers) == batch_size, f"{len(answers)} answers to {batch_size} photos"
    del times_s[0]
    return LoadReport(
        requests_per_s=round(batch_size * len(times_s) / sum(times_s), 3),
        p50_ms=round(1000 * statistics.median(times_s), 1),
        p99_ms=round(1000 * max(times_s), 1),
        errors=0,
    )


def run_forward(archive: Path, batch_size: int, seconds: float, *, has_gpu: bool) -> float:
    """Returns images per second of the built-in handler's model, after two rounds of warm-up."""
    handler = ImageClassifier()
    with tempfile.TemporaryDirectory(prefix="loop-") as folder:
        info = inspect_archive(archive, archive.name, Path(folder))
        place = unpack_archive(archive, info.sha256, Path(folder))
        handler.initialize(
            Context(
                *(info.model_name, str(place), dict(info.manifest or {}), batch_size),
                *(0 if has_gpu else None, "0"),
                model_yaml_config=dict(info.config),
            )
        )
    batch = torch.rand(batch_size, 3, 224, 224).to(handler.device)
    # Launched before a GPU is waited for, so that it never waits for us.
    forwards = 8 if has_gpu else 1
    rounds, started_s = -2, 0.0
    while rounds <= 0 or time.perf_counter() - started_s < seconds:
        if rounds == 0:
            started_s = time.perf_counter()
        for _ in range(forwards):
            handler.inference(batch)
        if has_gpu:
            torch.cuda.synchronize(handler.device)
        rounds += 1
    return round(rounds * forwards * batch_size / (time.perf_counter() - started_s), 1)


if __name__ == "__main__":
    what, archive, *words = sys.argv[1:]
    if what == "forward":
        has_gpu, seconds, *sizes = words
        rates = {
            size: run_forward(Path(archive), int(size), float(seconds), has_gpu=has_gpu == "1")
            for size in sizes
        }
        print(json.dumps(rates))
    else:
        photo, batch_size, seconds = words
        report = run_handler(
            Path(archive), Path(photo).read_bytes(), int(batch_size), float(seconds)
        )
        print(json.dumps(asdict(report)))
