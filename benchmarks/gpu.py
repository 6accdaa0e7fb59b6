"""Images per second served on a GPU, beside the model's forward alone.

    python -m benchmarks.gpu

JPEGs in, the five best classes out, through `ferry up`. Exit code 0: the bar is reached, or there
is no GPU; 1: it is missed; 2: nothing was measured.
"""

import argparse
import contextlib
import importlib.metadata
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.gpu_points import Point, forwards_per_s, served, split_ms, write_model
from benchmarks.gpu_report import BAR, markdown, to_point, verdict
from benchmarks.load import BenchmarkError
from benchmarks.records import PERFORMANCE, RESULTS, ROOT, origin, write_block, write_record
from benchmarks.reports import positive

EXIT_REACHED, EXIT_MISSED, EXIT_FAILED = 0, 1, 2
DTYPES, DECODERS = ("float32", "bfloat16", "float16"), ("cpu", "gpu")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=["resnet50", "resnet152"])
    parser.add_argument("--batches", nargs="+", type=positive, default=[32, 64])
    parser.add_argument("--workers", nargs="+", type=positive, default=[1, 4])
    parser.add_argument("--decode", nargs="+", choices=DECODERS, default=list(DECODERS))
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: to try the command out; the record stays in .bench, the document as it is",
    )
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        options.workers, options.decode = options.workers[:1], ["cpu"]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Everything is measured, printed and written; returns the exit code."""
    options = parse(arguments)
    console = Console(highlight=False, soft_wrap=True)
    gpu = find_gpu() if options.device == "cuda" else None
    if options.device == "cuda" and gpu is None:
        console.print("skipped: there is no CUDA device here; --device cpu tries the command out")
        return EXIT_REACHED
    # SIGTERM then unwinds the stack like Ctrl-C does, and the servers end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    load_average = round(os.getloadavg()[0], 2)
    try:
        points = list(measure(options, console))
    except BenchmarkError as error:
        console.print(str(error), style="red", markup=False)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    record = {
        "measured": "images/s of JPEGs to their five best classes, served and the forward alone",
        **origin(),
        "gpu": gpu,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "torchvision")},
        "load_average": load_average,
        "setting": {"device": options.device, "dtype": options.dtype, "seconds": options.seconds},
        "bar": BAR,
        "points": points,
    }
    publish(record, console)
    return EXIT_REACHED if gpu is None or verdict(record) else EXIT_MISSED


def measure(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """One record per point. Blocks for all runs.

    Raises:
        BenchmarkError: a server or a tool is missing or failed.
    """
    kind, seconds = options.device, options.seconds
    points = []
    for network, decode in itertools.product(options.models, options.decode):
        with tempfile.TemporaryDirectory(prefix="gpu-") as name:
            folder = Path(name)
            write_model(folder, network, options.dtype, decode)
            for batch_size in options.batches:
                alone = forwards_per_s(folder, kind, batch_size, seconds)
                for workers in options.workers:
                    point = Point(network, batch_size, workers, decode)
                    console.print(f"{point}: {alone:.1f} images/s of the forward alone")
                    report = served(folder, point, kind, seconds)
                    parts = split_ms(folder, point, kind, seconds)
                    points.append(to_point(point, alone, report, parts))
    return points


def publish(record: dict[str, Any], console: Console) -> None:
    """The record is written; that of a GPU is in docs/performance.md."""
    is_gpu = record["gpu"] is not None
    path = (RESULTS if is_gpu else ROOT / ".bench" / "results") / "gpu.json"
    write_record(record, path)
    table = markdown(record)
    if is_gpu:
        write_block(PERFORMANCE, "gpu", table)
    console.print(f"{table}\nwritten to {path}", markup=False)


def find_gpu() -> dict[str, str] | None:
    """The first GPU that torch sees, and its driver; None when it sees none."""
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
