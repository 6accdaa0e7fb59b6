"""Measures one network with one batch size: the forward alone, served, and served step by step."""

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.load import BenchmarkError, Load, LoadReport, drive_to_the_end
from benchmarks.measured_ferry import MeasuredFerry
from benchmarks.records import ROOT
from benchmarks.servers import Job

PLAIN, TIMED, PHOTO = "plain.mar", "timed.mar", "photo.jpg"
MAX_BATCH_DELAY_MS = 50
# Batches that wait or are on their way while each worker runs one.
BATCHES_PER_WORKER = 3
# A process of load gets no further than some thousand requests per second.
LOADERS = 4
# Handlers' metrics are in /metrics within two seconds.
METRICS_S = 2.5
STEPS = ("decode", "to_device", "forward", "from_device")


@dataclass(frozen=True, slots=True)
class Point:
    """What is measured; `decode` is who decodes JPEGs, `cpu` or `gpu`."""

    network: str
    batch_size: int
    workers: int
    decode: str


def write_model(folder: Path, network: str, dtype: str, decode: str) -> None:
    """The archives and the photo are in the folder.

    Raises:
        BenchmarkError: there is no such network.
    """
    _python("gpu_model", str(folder), network, dtype, decode)


def forwards_per_s(folder: Path, kind: str, batch_size: int, seconds: float) -> float:
    """Images per second of the forward alone.

    Raises:
        BenchmarkError: the model cannot be loaded, or failed.
    """
    return float(_python("gpu_loop", str(folder / PLAIN), kind, str(batch_size), str(seconds)))


def served(folder: Path, point: Point, kind: str, seconds: float) -> LoadReport:
    """What clients saw of the built-in handler.

    Raises:
        BenchmarkError: the server did not start or answered nothing.
    """
    with _ferry(folder / PLAIN, point, kind) as server:
        return _drive(server, folder, point, seconds)


def split_ms(folder: Path, point: Point, kind: str, seconds: float) -> dict[str, float]:
    """Milliseconds of a batch by what they were spent on, the GPU waited for after each step.

    `between` is what a worker does between two batches: reply, and gather the next one. Among the
    steps, `from_device` has softmax and the best classes; `rest` is what is left of a batch: rows
    in, JSON out.

    Raises:
        BenchmarkError: the server did not start or answered nothing.
    """
    with _ferry(folder / TIMED, point, kind) as server:
        report = _drive(server, folder, point, seconds)
        time.sleep(METRICS_S)
        return per_batch(server.totals(), report.requests_per_s / point.workers)


def per_batch(spent: Mapping[str, float], images_per_s: float) -> dict[str, float]:
    """The parts of one batch, in ms, and how many images it had.

    Args:
        spent: sums by the names of samples in /metrics.
        images_per_s: of one worker.
    """
    batches = spent["ferry_batch_size_count"]
    steps = {name: spent[f"step_{name}"] for name in STEPS}
    elapsed_ms = spent["ferry_batch_size_sum"] / images_per_s * 1000
    run_ms = spent["ferry_handler_seconds_sum"] * 1000
    parts = {"between": elapsed_ms - run_ms, **steps, "rest": run_ms - sum(steps.values())}
    found = {name: round(value / batches, 3) for name, value in parts.items()}
    return found | {"images": round(spent["ferry_batch_size_sum"] / batches, 1)}


def _ferry(archive: Path, point: Point, kind: str) -> MeasuredFerry:
    job = Job(
        model_name=point.network,
        archive=archive,
        own_archive=archive,
        weights=None,
        batch_size=point.batch_size,
        max_batch_delay_ms=MAX_BATCH_DELAY_MS,
        job_queue_size=2 * _connections(point),
        workers=point.workers,
    )
    return MeasuredFerry(job, {"FERRY_NUMBER_OF_GPU": "0"} if kind == "cpu" else None)


def _connections(point: Point) -> int:
    return BATCHES_PER_WORKER * point.batch_size * point.workers


def _drive(server: MeasuredFerry, folder: Path, point: Point, seconds: float) -> LoadReport:
    """What several processes of load saw together."""
    loaders = max(1, min(LOADERS, (os.cpu_count() or 1) // 4))
    load = Load(
        url=server.url,
        body=(folder / PHOTO).read_bytes(),
        content_type="image/jpeg",
        connections=-(-_connections(point) // loaders),
    )
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(loaders, mp_context=context) as pool:
        reports = list(pool.map(partial(drive_to_the_end, load), [seconds] * loaders))
    return LoadReport(
        requests_per_s=round(sum(report.requests_per_s for report in reports), 3),
        p50_ms=max(report.p50_ms for report in reports),
        p99_ms=max(report.p99_ms for report in reports),
        errors=sum(report.errors for report in reports),
    )


def _python(module: str, *words: str) -> str:
    """The last line that a module of this folder printed.

    Raises:
        BenchmarkError: it failed.
    """
    run = subprocess.run(
        [sys.executable, "-P", "-m", f"benchmarks.{module}", *words],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'compat'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise BenchmarkError(f"benchmarks.{module} failed:\n{run.stderr[-3000:]}")
    return run.stdout.splitlines()[-1] if run.stdout else ""
