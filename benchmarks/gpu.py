"""Images per second served on a GPU, beside the model's forward alone.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --report RECORD

JPEGs in, the five best classes out, through `ferry up`. The record is written after each point.
`--report` writes the table of a record that another machine has made. Exit code 0: the bar is
reached, or there is no GPU; 1: it is missed; 2: nothing was measured.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring import records
from benchmarks.measuring.load import Load, LoadReport, drive
from benchmarks.measuring.processors import Meter
from benchmarks.servers.child import run_module
from benchmarks.servers.running import Torchferry

DTYPES, DECODERS = ("float32", "bfloat16", "float16"), ("cpu", "gpu")
# Sixteen cores decode some 2,000 photos per second; a GPU runs four times as many through this one.
DECODERS_OF = {"resnet50": ("gpu",)}
# Decoding on processors takes longer than the forward, so that more workers are wanted.
WORKERS_OF = {"cpu": (4, 8), "gpu": (1, 4)}
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
    add("--record", type=Path, help="the file to write")
    add("--report", type=Path, help="a record of which to write the table")
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
        "points": [],
    }
    for network in options.models:
        with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
            measure_network(network, Path(folder), options, record)
    return finish(record, is_document=gpu is not None)


def measure_network(
    network: str, folder: Path, options: argparse.Namespace, record: dict[str, Any]
) -> None:
    """Measures all points of one network, and writes the record after each."""
    decoders = options.decode or DECODERS_OF.get(network, DECODERS)
    run_module("networks", "classifier", folder, network, options.dtype, *decoders)
    # The forward of the prepared model, and of the model as it came, in float32.
    words = (options.device, options.seconds, *options.batches)
    alone_per_s, raw_per_s = (
        json.loads(run_module("bare_loop", "forward", folder / archive, *words))
        for archive in (f"plain-{decoders[0]}.mar", "raw.mar")
    )
    settings = {"FERRY_JOB_QUEUE_SIZE": str(QUEUE_SIZE)}
    if options.device == "cpu":
        settings["FERRY_NUMBER_OF_GPU"] = "0"
    with Torchferry(settings=settings) as server:
        for decode in decoders:
            archive = folder / f"plain-{decode}.mar"
            shutil.copy(archive, server.folder / "store")
            workers = options.workers or WORKERS_OF[decode]
            for batch_size, count in itertools.product(options.batches, workers):
                asked = {"batch_size": batch_size, "max_batch_delay": MAX_BATCH_DELAY_MS}
                asked |= {"url": archive.name, "initial_workers": count}
                server.register(MODEL, **asked)
                connections = BATCHES_PER_WORKER * batch_size * count
                report, cores = served(
                    server, (folder / "photo.jpg").read_bytes(), connections, options.seconds
                )
                server.unregister(MODEL)
                forward_per_s = alone_per_s[str(batch_size)]
                point = {"network": network, "batch_size": batch_size, "decode": decode}
                point |= {"workers": count, "raw_per_s": raw_per_s[str(batch_size)]}
                point |= {
                    "forward_per_s": forward_per_s,
                    "served_per_s": round(report.requests_per_s, 1),
                }
                point["share"] = round(report.requests_per_s / forward_per_s, 3)
                point |= {"p50_ms": report.p50_ms, "p99_ms": report.p99_ms}
                point |= {"errors": report.errors, "cores": cores}
                print(point, flush=True)
                record["points"].append(point)
                records.write_record(record, options.record)


def served(
    server: Torchferry, photo: bytes, connections: int, seconds: float
) -> tuple[LoadReport, dict[str, float]]:
    """Returns what clients saw, and how many cores each kind of process kept busy meanwhile."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(LOADERS, mp_context=context) as pool:
        load = Load(server.url_of(MODEL), photo, -(-connections // LOADERS), "image/jpeg")
        list(pool.map(loaded, [load] * LOADERS, [WARM_UP_S] * LOADERS))
        meter = Meter(server.processes())
        parts = list(pool.map(loaded, [load] * LOADERS, [seconds] * LOADERS))
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


# --- what it comes to


def finish(record: Mapping[str, Any], *, is_document: bool) -> int:
    """Prints the table and writes it into the journal; returns the exit code."""
    table = markdown(record)
    print(table)
    if not is_document:
        return 0
    records.write_block("gpu", table)
    return 0 if verdict(record) else 1


def verdict(record: Mapping[str, Any]) -> bool:
    """Returns whether each network and batch size reaches the bar in one way, without errors."""
    best: dict[tuple[str, int], float] = {}
    for point in record["points"]:
        key = (point["network"], point["batch_size"])
        best[key] = max(point["share"], best.get(key, 0.0))
    has_errors = any(point["errors"] for point in record["points"])
    return not has_errors and min(best.values()) >= record["bar"]


def markdown(record: Mapping[str, Any]) -> str:
    gpu, setting, points = record["gpu"], record["setting"], record["points"]
    roles = sorted({role for point in points for role in point["cores"]})
    where = "no GPU" if gpu is None else f"{gpu['name']}, driver {gpu.get('driver', 'unknown')}"
    rows = []
    for point in points:
        share = f"{point['share']:.0%}"
        rows.append(
            (
                *(point[name] for name in ("network", "batch_size", "workers", "decode")),
                *(f"{point[name]:.1f}" for name in ("raw_per_s", "forward_per_s", "served_per_s")),
                f"**{share}**" if point["share"] >= record["bar"] else share,
                *(f"{point['p99_ms']:.0f}", point["errors"]),
                *(f"{point['cores'].get(role, 0.0):.1f}" for role in roles),
            )
        )
    return (
        f"`make bench-gpu` at {records.told(record)}; {where}; torch "
        f"{record['versions']['torch']}, {setting['dtype']}; load average "
        f"{record['load_average']} before. Images/s, and the cores that were busy meanwhile:\n\n"
        f"{records.table_of([*HEADS, *roles], rows)}"
    )


def read_record(path: Path) -> dict[str, Any]:
    """Returns a record with results.

    Raises:
        BenchmarkError: says in one sentence what to do.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record["points"]:
            return record
    raise records.BenchmarkError(
        f"There are no results in {path}: name the record that `make bench-gpu` has written."
    )


def main() -> int:
    options = parse()
    if options.report:
        return records.guarded(lambda: finish(read_record(options.report), is_document=True))
    gpu = find_gpu() if options.device == "cuda" else None
    if options.device == "cuda" and gpu is None:
        print("skipped: there is no CUDA device here; --device cpu tries the command out")
        return 0
    return records.guarded(lambda: measure(options, gpu))


if __name__ == "__main__":
    sys.exit(main())
