"""Images per second served on a GPU, beside the model's forward alone.

    python -m benchmarks.gpu

JPEGs in, the five best classes out, through `ferry up`. The record is written after each point, and
what it has of this commit is not measured again. Exit code 0: the bar is reached, or there
is no GPU; 1: it is missed; 2: nothing was measured.
"""

import argparse
import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.gpu_report import BAR, markdown, to_point, verdict
from benchmarks.gpus.gpu_points import (
    PLAIN,
    RAW,
    Point,
    archive_path,
    forwards_per_s,
    ingress_count,
    served,
    split_ms,
    write_model,
)
from benchmarks.gpus.gpu_record import GpuRecord
from benchmarks.measuring.load import BenchmarkError
from benchmarks.measuring.records import RESULTS, SHORT_RESULTS, origin, write_block
from benchmarks.measuring.reports import end_servers_on_sigterm, positive

EXIT_REACHED, EXIT_MISSED, EXIT_FAILED = 0, 1, 2
DTYPES, DECODERS = ("float32", "bfloat16", "float16"), ("cpu", "gpu")
# Sixteen cores decode some 2,000 photos per second; a GPU runs four times as many through this one.
DECODERS_OF = {"resnet50": ("gpu",)}
# Decoding on processors takes longer than the forward, so that more workers are wanted.
WORKERS_OF = {"cpu": (4, 8), "gpu": (1, 4)}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads and checks the options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=["resnet50", "resnet152"])
    parser.add_argument("--batches", nargs="+", type=positive, default=[32, 64])
    parser.add_argument("--workers", nargs="+", type=positive, help="default: by the decoder")
    parser.add_argument("--decode", nargs="+", choices=DECODERS, help="default: by the model")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: to try the command out; the record stays in .bench, the document as it is",
    )
    parser.add_argument("--record", type=Path, help="the file to continue and to write")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        options.workers, options.decode = (options.workers or [1])[:1], ["cpu"]
    folder = RESULTS if options.device == "cuda" else SHORT_RESULTS
    options.record = options.record or folder / "gpu.json"
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything, prints and writes it; returns the exit code."""
    options = parse(arguments)
    console = Console(highlight=False, soft_wrap=True)
    gpu = find_gpu() if options.device == "cuda" else None
    if options.device == "cuda" and gpu is None:
        console.print("skipped: there is no CUDA device here; --device cpu tries the command out")
        return EXIT_REACHED
    end_servers_on_sigterm()
    record = GpuRecord(options.record, head(options, gpu))
    try:
        for network in options.models:
            measure(network, options, record, console)
    except BenchmarkError as error:
        console.print(str(error), style="red", markup=False)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    table = markdown(record.content)
    if gpu is not None:
        write_block("gpu", table)
    console.print(f"{table}\nwritten to {record.path}", markup=False)
    return EXIT_REACHED if gpu is None or verdict(record.content) else EXIT_MISSED


def head(options: argparse.Namespace, gpu: dict[str, str] | None) -> dict[str, Any]:
    """Returns what holds for every point; called before the first measurement."""
    return {
        "measured": "images/s of JPEGs to their five best classes, served and the forward alone",
        **origin(),
        "gpu": gpu,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "torchvision")},
        "load_average": round(os.getloadavg()[0], 2),
        "setting": {
            "device": options.device,
            "dtype": options.dtype,
            "seconds": options.seconds,
            "ingresses": ingress_count(),
        },
        "bar": BAR,
    }


def measure(network: str, options: argparse.Namespace, record: GpuRecord, console: Console) -> None:
    """Measures every point of this network into the record. Blocks for all runs.

    Raises:
        BenchmarkError: a server or a tool is missing or failed.
    """
    decoders = options.decode or DECODERS_OF.get(network, DECODERS)
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        write_model(folder, network, options.dtype, decoders)
        for batch_size in options.batches:
            points = [
                Point(network, batch_size, workers, decode)
                for decode in decoders
                for workers in options.workers or WORKERS_OF[decode]
            ]
            measure_batch(points, folder, options, record, console)


def measure_batch(
    points: Sequence[Point],
    folder: Path,
    options: argparse.Namespace,
    record: GpuRecord,
    console: Console,
) -> None:
    """Measures the points of one network and batch size, and the parts of the best one.

    Raises:
        BenchmarkError: a server or a tool is missing or failed.
    """
    kind, seconds = options.device, options.seconds
    missing = [point for point in points if record.find(point) is None]
    if missing:
        first = missing[0]
        prepared = archive_path(folder, PLAIN, first.decode)
        alone = forwards_per_s(prepared, kind, first.batch_size, seconds)
        raw = forwards_per_s(archive_path(folder, RAW), kind, first.batch_size, seconds)
    for point in missing:
        found = served(folder, point, kind, seconds)
        record.keep(to_point(point, alone, raw, found))
        console.print(f"{point}: {found.report.requests_per_s:.1f} of {alone:.1f} images/s")
    best = max(points, key=lambda point: (record.find(point) or {})["served_per_s"])
    measured = record.find(best) or {}
    if measured["batch_ms"] is None:
        record.keep(measured | {"batch_ms": split_ms(folder, best, kind, seconds)})


def find_gpu() -> dict[str, str] | None:
    """Returns the first GPU that torch sees, and its driver; None when it sees none."""
    # Not above: each process of load imports this module.
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return None
    found = {"name": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda)}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        found["driver"] = run.stdout.strip()
    return found


if __name__ == "__main__":
    sys.exit(main())
