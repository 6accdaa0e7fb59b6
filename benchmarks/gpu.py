"""Images per second served on a GPU, beside the model's forward alone.

    python -m benchmarks.gpu

JPEGs in, the five best classes out, through `ferry up`. Each point is printed as it is measured.
"""

import argparse
import concurrent.futures
import contextlib
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring import records
from benchmarks.measuring.load import Load, LoadReport, drive
from benchmarks.measuring.processors import Meter
from benchmarks.measuring.records import Verdict, at_least, at_most
from benchmarks.servers.child import run_module
from benchmarks.servers.running import Torchferry

BATCH_SIZES, SECONDS = (32, 64), 5.0
# Sixteen cores decode some 2,000 photos per second; a GPU runs four times as many through this one.
DECODERS = {"resnet50": ("gpu",), "resnet152": ("cpu", "gpu")}
# Decoding on processors takes longer than the forward, so that more workers are wanted.
WORKERS = {"cpu": (4, 8), "gpu": (1, 4)}
MAX_BATCH_DELAY_MS = 50
# Batches that wait or are on their way while each worker runs one.
BATCHES_PER_WORKER = 3
QUEUE_SIZE = 4096
# A process of load gets no further than some thousand requests per second.
LOADERS = max(1, min(4, (os.cpu_count() or 1) // 4))
# Connections are made, lazy imports and first kernels are behind, all loaders have begun.
WARM_UP_S = 2.0
# Of the forward's images per second.
BAR = 0.9
MODEL = "classifier"
HEADS = (
    *("", "Batch", "Workers", "JPEGs decoded by", "Forward as it came", "Forward alone"),
    *("Served", "Share", "p99, ms", "Errors"),
)


def find_gpu() -> dict[str, str] | None:
    """Returns the first GPU that torch sees, and its driver; None when it sees none."""
    # Not above: each process of load imports this module.
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return None
    gpu = {"name": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda)}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        gpu["driver"] = run.stdout.strip()
    return gpu


def measure(options: argparse.Namespace, gpu: Mapping[str, str] | None) -> dict[str, Any]:
    points = []
    for network in options.models:
        with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
            for point in measure_network(network, Path(folder), options, has_gpu=gpu is not None):
                print(point, flush=True)
                points.append(point)
    return {
        "measured": "images/s of JPEGs to their five best classes, served and the forward alone",
        "gpu": gpu,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "torchvision")},
        "points": points,
        "verdicts": list(verdicts(points)),
    }


def measure_network(
    network: str, folder: Path, options: argparse.Namespace, *, has_gpu: bool
) -> Iterator[dict[str, Any]]:
    """Yields all points of one network; of a short run, or without a GPU, only a small one."""
    sizes, seconds, decoders = BATCH_SIZES, SECONDS, DECODERS[network]
    if options.short:
        sizes, seconds, decoders = (4,), 1.0, decoders[:1] if has_gpu else ("cpu",)
    run_module("networks", "classifier", folder, network, *decoders)
    # The forward of the prepared model, and of the model as it came.
    alone_per_s, raw_per_s = (
        json.loads(
            run_module("bare_loop", "forward", folder / archive, int(has_gpu), seconds, *sizes)
        )
        for archive in (f"plain-{decoders[0]}.mar", "raw.mar")
    )
    settings = {"FERRY_JOB_QUEUE_SIZE": str(QUEUE_SIZE)}
    if not has_gpu:
        settings["FERRY_NUMBER_OF_GPU"] = "0"
    with Torchferry(settings=settings) as server:
        for decode, batch_size in itertools.product(decoders, sizes):
            archive = folder / f"plain-{decode}.mar"
            shutil.copy(archive, server.folder / "store")
            for workers in (1,) if options.short else WORKERS[decode]:
                asked = {"batch_size": batch_size, "max_batch_delay": MAX_BATCH_DELAY_MS}
                server.register(MODEL, url=archive.name, initial_workers=workers, **asked)
                connections = BATCHES_PER_WORKER * batch_size * workers
                photo = (folder / "photo.jpg").read_bytes()
                figures = served(server, photo, connections, seconds)
                server.unregister(MODEL)
                forward_per_s = alone_per_s[str(batch_size)]
                yield {
                    "network": network,
                    "batch_size": batch_size,
                    "decode": decode,
                    "workers": workers,
                    "raw_per_s": raw_per_s[str(batch_size)],
                    "forward_per_s": forward_per_s,
                    "share": round(figures["served_per_s"] / forward_per_s, 3),
                    **figures,
                }


def served(server: Torchferry, photo: bytes, connections: int, seconds: float) -> dict[str, Any]:
    """Returns what clients saw, and how many cores each kind of process kept busy meanwhile."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(LOADERS, mp_context=context) as pool:
        load = Load(server.url_of(MODEL), photo, -(-connections // LOADERS), "image/jpeg")
        list(pool.map(loaded, [load] * LOADERS, [WARM_UP_S] * LOADERS))
        meter = Meter(server.processes())
        parts = list(pool.map(loaded, [load] * LOADERS, [seconds] * LOADERS))
        cores = {role: round(usage.percent / 100, 2) for role, usage in meter.read().items()}
    reports = [report for report, _ in parts]
    return {
        "served_per_s": round(sum(report.requests_per_s for report in reports), 1),
        "p50_ms": max(report.p50_ms for report in reports),
        "p99_ms": max(report.p99_ms for report in reports),
        "errors": sum(report.errors for report in reports),
        "cores": cores | {"load": round(sum(used for _, used in parts), 2)},
    }


def loaded(load: Load, seconds: float) -> tuple[LoadReport, float]:
    """Drives, in a process of its own; returns how many cores this one kept busy, too."""
    started_s, used_s = time.perf_counter(), time.process_time()
    report = drive(load, seconds).report()
    return report, (time.process_time() - used_s) / (time.perf_counter() - started_s)


def verdicts(points: list[dict[str, Any]]) -> Iterator[Verdict]:
    """Judges each network and batch size by the way that serves most."""
    best: dict[tuple[str, int], float] = {}
    for point in points:
        key = (point["network"], point["batch_size"])
        best[key] = max(point["share"], best.get(key, 0.0))
    for (network, batch_size), share in best.items():
        text = f"{network}, batches of {batch_size}: {{}} of the forward"
        yield at_least(100 * share, 100 * BAR, text, "{:.0f} %")
    yield at_most(sum(point["errors"] for point in points), 0, "errors: {}", "{:d}")


def markdown(record: Mapping[str, Any]) -> str:
    gpu, points = record["gpu"], record["points"]
    roles = sorted({role for point in points for role in point["cores"]})
    where = "no GPU" if gpu is None else f"{gpu['name']}, driver {gpu.get('driver', 'unknown')}"
    rows = [
        (
            *(point[name] for name in ("network", "batch_size", "workers", "decode")),
            *(f"{point[name]:.1f}" for name in ("raw_per_s", "forward_per_s", "served_per_s")),
            *(f"{point['share']:.0%}", f"{point['p99_ms']:.0f}", point["errors"]),
            *(f"{point['cores'].get(role, 0.0):.1f}" for role in roles),
        )
        for point in points
    ]
    about = f"{where}; torch {record['versions']['torch']}, float32. Images/s, and the cores busy"
    return f"{about}:\n\n{records.table_of([*HEADS, *roles], rows)}"


def main() -> int:
    parser = records.parser_of("gpu")
    parser.add_argument("--models", nargs="+", choices=DECODERS, default=[*DECODERS])
    options = parser.parse_args()
    gpu = find_gpu()
    if gpu is None and not options.short:
        print("skipped: there is no CUDA device here; --short tries the command out")
        return 0
    return records.guarded(
        lambda: records.finish(
            "gpu", lambda: measure(options, gpu), markdown, is_short=options.short
        )
    )


if __name__ == "__main__":
    sys.exit(main())
