"""The same handler with the same archive in a loop, in one process, without any server.

    python -m benchmarks.bare_loop ARCHIVE JPEG BATCH_SIZE SECONDS

prints one line of JSON, a LoadReport. JPEGs in, the best classes out: what is left to gain.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from ts.context import RequestProcessor

from batching.models.registration import ModelDefaults, spec_from_registration
from batching.settings.settings import Settings
from benchmarks.measuring.load import BenchmarkError, LoadReport
from workers.archives.model_archive import inspect_archive, unpack_archive
from workers.handling.handlers import load_model
from workers.machine import Device


def loop(archive: Path, photo: bytes, batch_size: int, seconds: float) -> LoadReport:
    """Runs whole batches for at least that many seconds, after one that is not measured."""
    with tempfile.TemporaryDirectory(prefix="bare-") as folder:
        info = inspect_archive(archive, archive.name)
        spec = spec_from_registration({"batch_size": batch_size}, info, ModelDefaults())
        place = unpack_archive(archive, info.sha256, Path(folder))
        model = load_model(spec, place, Device("cpu"), Settings())
    model.context.request_processor = [RequestProcessor({}) for _ in range(batch_size)]
    times_s: list[float] = []
    while sum(times_s[1:]) < seconds:
        started_s = time.perf_counter()
        answers = model.entry([{"body": photo} for _ in range(batch_size)], model.context)
        times_s.append(time.perf_counter() - started_s)
        if len(answers) != batch_size:
            raise BenchmarkError(f"{len(answers)} answers to {batch_size} photos")
    del times_s[0]
    return LoadReport(
        requests_per_s=round(batch_size * len(times_s) / sum(times_s), 3),
        p50_ms=round(1000 * statistics.median(times_s), 1),
        p99_ms=round(1000 * max(times_s), 1),
        errors=0,
    )


if __name__ == "__main__":
    archive, photo, batch_size, seconds = sys.argv[1:]
    found = loop(Path(archive), Path(photo).read_bytes(), int(batch_size), float(seconds))
    print(json.dumps(asdict(found)))
