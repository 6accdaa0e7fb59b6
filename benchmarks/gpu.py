"""Images per second served on a GPU, beside the model's forward alone.

    python -m benchmarks.gpu

JPEGs in, the five best classes out, through `ferry up`. The record is written after each point, and
what it has of this commit is not measured again: a time limit ends no measurement. Exit code 0: the
bar is reached, or there is no GPU; 1: it is missed; 2: nothing was measured.
"""

import argparse
import concurrent.futures
import contextlib
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_report import markdown, verdict
from benchmarks.measuring import records
from benchmarks.measuring.load import Load, LoadReport, drive
from benchmarks.measuring.processors import Meter
from benchmarks.servers.child import run_module
from benchmarks.servers.running import ServedModel, Torchferry

DTYPES, DECODERS = ("float32", "bfloat16", "float16"), ("cpu", "gpu")
# Sixteen cores decode some 2,000 photos per second; a GPU runs four times as many through this one.
DECODERS_OF = {"resnet50": ("gpu",)}
# Decoding on processors takes longer than the forward, so that more workers are wanted.
WORKERS_OF = {"cpu": (4, 8), "gpu": (1, 4)}
MAX_BATCH_DELAY_MS = 50
# Batches that wait or are on their way while each worker runs one.
BATCHES_PER_WORKER = 3
# A process of load gets no further than some thousand requests per second.
LOADERS = max(1, min(4, (os.cpu_count() or 1) // 4))
# Connections are made, lazy imports and first kernels are behind, all loaders have begun.
WARM_UP_S = 2.0
# Of the forward's images per second.
BAR = 0.9
# Points that differ in one of these do not belong in one table.
LIKE = ("commit", "is_clean", "versions", "setting", "bar")
KEY = ("network", "batch_size", "decode", "workers")

Point = dict[str, Any]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    add = parser.add_argument
    add("--models", nargs="+", default=["resnet50", "resnet152"])
    add("--batches", nargs="+", type=records.positive, default=[32, 64])
    add("--workers", nargs="+", type=records.positive, help="default: by the decoder")
    add("--decode", nargs="+", choices=DECODERS, help="default: by the model")
    add("--dtype", choices=DTYPES, default="float32")
    add("--seconds", type=float, default=5.0, help="of each run")
    words = "cpu: to try the command out; the record stays in .bench, the document as it is"
    add("--device", choices=("cuda", "cpu"), default="cuda", help=words)
    add("--record", type=Path, help="the file to continue and to write")
    options = parser.parse_args()
    if options.device == "cpu":
        options.workers, options.decode = (options.workers or [1])[:1], ["cpu"]
    folder = records.RESULTS if options.device == "cuda" else records.SHORT_RESULTS
    options.record = options.record or folder / "gpu.json"
    return options


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


def measure(options: argparse.Namespace, gpu: Mapping[str, str] | None) -> int:
    """Measures everything, prints and writes it; returns the exit code."""
    record: dict[str, Any] = {
        "measured": "images/s of JPEGs to their five best classes, served and the forward alone",
        **records.origin(),
        "gpu": gpu,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "torchvision")},
        "load_average": round(os.getloadavg()[0], 2),
        "setting": {name: getattr(options, name) for name in ("device", "dtype", "seconds")},
        "bar": BAR,
    }
    record["points"] = points_like(record, options.record)
    for network in options.models:
        decoders = options.decode or DECODERS_OF.get(network, DECODERS)
        with tempfile.TemporaryDirectory(prefix="gpu-") as name:
            folder = Path(name)
            run_module("networks", "classifier", folder, network, options.dtype, *decoders)
            for batch_size, decode in itertools.product(options.batches, decoders):
                workers = options.workers or WORKERS_OF[decode]
                points = [
                    dict(zip(KEY, (network, batch_size, decode, n), strict=True)) for n in workers
                ]
                measure_points(points, folder, options, record)
    table = markdown(record)
    print(f"{table}\nwritten to {options.record}")
    if gpu is None:
        return 0
    records.write_block("gpu", table)
    return 0 if verdict(record) else 1


def points_like(head: Mapping[str, Any], path: Path) -> list[Point]:
    """Returns points of this very code, measured with the same settings on such a machine."""
    if not path.is_file() or not head["is_clean"]:
        return []
    before = json.loads(path.read_text(encoding="utf-8"))

    def machine(record: Mapping[str, Any]) -> list[Any]:
        where, gpu = record["machine"], record["gpu"] or {}
        return [
            where["cpus"],
            where["processor"],
            gpu.get("name"),
            *(record[name] for name in LIKE),
        ]

    return before["points"] if machine(before) == machine(head) else []


def measure_points(
    points: list[Point], folder: Path, options: argparse.Namespace, record: dict[str, Any]
) -> None:
    """Measures those of the points that the record lacks, and writes it after each."""
    known = [[point[name] for name in KEY] for point in record["points"]]
    missing = [point for point in points if list(point.values()) not in known]
    if not missing:
        return
    batch_size, decode = missing[0]["batch_size"], missing[0]["decode"]
    # The forward of the prepared model, and of the model as it came, in float32.
    alone_per_s, raw_per_s = (
        float(
            run_module(
                "bare_loop", "forward", folder / name, options.device, batch_size, options.seconds
            )
        )
        for name in (f"plain-{decode}.mar", "raw.mar")
    )
    for point in missing:
        report, cores = served(point, folder, options)
        print(f"{point}: {report.requests_per_s:.1f} of {alone_per_s:.1f} images/s", flush=True)
        record["points"].append(
            {
                **point,
                "raw_per_s": round(raw_per_s, 1),
                "forward_per_s": round(alone_per_s, 1),
                "served_per_s": round(report.requests_per_s, 1),
                "share": round(report.requests_per_s / alone_per_s, 3),
                "p50_ms": report.p50_ms,
                "p99_ms": report.p99_ms,
                "errors": report.errors,
                "cores": cores,
            }
        )
        record["points"].sort(key=lambda point: [point[name] for name in KEY])
        records.write_record(record, options.record)


def served(
    point: Mapping[str, Any], folder: Path, options: argparse.Namespace
) -> tuple[LoadReport, dict[str, float]]:
    """Returns what clients saw, and how many cores each kind of process kept busy meanwhile."""
    connections = BATCHES_PER_WORKER * point["batch_size"] * point["workers"]
    model = ServedModel(
        point["network"],
        folder / f"plain-{point['decode']}.mar",
        point["batch_size"],
        MAX_BATCH_DELAY_MS,
        queue_size=2 * connections,
        workers=point["workers"],
    )
    settings = {"FERRY_NUMBER_OF_GPU": "0"} if options.device == "cpu" else {}
    context = multiprocessing.get_context("spawn")
    with (
        Torchferry(model, settings=settings) as server,
        concurrent.futures.ProcessPoolExecutor(LOADERS, mp_context=context) as pool,
    ):
        photo = (folder / "photo.jpg").read_bytes()
        load = Load(server.url_of(model.name), photo, -(-connections // LOADERS), "image/jpeg")
        list(pool.map(loaded, [load] * LOADERS, [WARM_UP_S] * LOADERS))
        meter = Meter(server.processes())
        parts = list(pool.map(loaded, [load] * LOADERS, [options.seconds] * LOADERS))
        cores = {role: round(usage.percent / 100, 2) for role, usage in meter.read().items()}
    reports = [report for report, _ in parts]
    together = LoadReport(
        requests_per_s=sum(report.requests_per_s for report in reports),
        p50_ms=max(report.p50_ms for report in reports),
        p99_ms=max(report.p99_ms for report in reports),
        errors=sum(report.errors for report in reports),
    )
    return together, cores | {"load": round(sum(used for _, used in parts), 2)}


def loaded(load: Load, seconds: float) -> tuple[LoadReport, float]:
    """Drives, in a process of its own; returns how many cores this one kept busy, too."""
    started_s, used_s = time.perf_counter(), time.process_time()
    report = drive(load, seconds).report()
    return report, (time.process_time() - used_s) / (time.perf_counter() - started_s)


def main() -> int:
    options = parse()
    gpu = find_gpu() if options.device == "cuda" else None
    if options.device == "cuda" and gpu is None:
        print("skipped: there is no CUDA device here; --device cpu tries the command out")
        return 0
    return records.guarded(lambda: measure(options, gpu))


if __name__ == "__main__":
    sys.exit(main())
