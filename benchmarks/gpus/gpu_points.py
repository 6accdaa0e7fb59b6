"""Measures one network with one batch size: the forward alone, served, and served step by step."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpus.loaders import Driven, driven, together
from benchmarks.measuring.load import Load, LoadReport
from benchmarks.measuring.processors import Meter
from benchmarks.servers.child import run_module
from benchmarks.servers.server import Job
from benchmarks.servers.wide_ferry import WideFerry

PHOTO = "photo.jpg"
# What an archive is for: figures, a stopwatch on each step, the model as it came.
PLAIN, TIMED, RAW = "plain", "timed", "raw"
MAX_BATCH_DELAY_MS = 50
# Batches that wait or are on their way while each worker runs one.
BATCHES_PER_WORKER = 3
# A process of load, and an ingress, get no further than some thousand requests per second.
MOST_INGRESSES = 4
CORES_PER_INGRESS = 4
# Connections are made, lazy imports and first kernels are behind, all loaders have begun.
WARM_UP_S = 2.0
# Handlers' metrics are in /metrics within two seconds.
METRICS_S = 2.5
STEPS = ("decode", "to_device", "forward", "from_device")


@dataclass(frozen=True, slots=True)
class Point:
    """What is measured; `decode` is the decoder of JPEGs, `cpu` or `gpu`."""

    network: str
    batch_size: int
    workers: int
    decode: str


@dataclass(frozen=True, slots=True)
class Served:
    """What clients saw, and how many cores each kind of process kept busy meanwhile."""

    report: LoadReport
    cores: Mapping[str, float]


def archive_path(folder: Path, kind: str, decode: str = "cpu") -> Path:
    """Returns the path at which `write_model` puts an archive."""
    return folder / f"{kind}-{decode}.mar"


def write_model(folder: Path, network: str, dtype: str, decoders: Sequence[str]) -> None:
    """Writes the archives and the photo into the folder.

    Raises:
        BenchmarkError: there is no such network.
    """
    run_module("gpus.gpu_model", folder, network, dtype, *decoders)


def forwards_per_s(archive: Path, kind: str, batch_size: int, seconds: float) -> float:
    """Images per second of the forward alone.

    Raises:
        BenchmarkError: the model cannot be loaded, or failed.
    """
    return float(run_module("gpus.gpu_loop", archive, kind, batch_size, seconds))


def served(folder: Path, point: Point, kind: str, seconds: float) -> Served:
    """Measures the built-in handler, after a warm-up.

    Raises:
        BenchmarkError: the server did not start or answered nothing; none of its GPUs decodes.
    """
    with (
        _ferry(archive_path(folder, PLAIN, point.decode), point, kind) as server,
        _loaders(server) as drive,
    ):
        drive(folder, point, WARM_UP_S)
        meter = Meter(server.processes())
        found = drive(folder, point, seconds)
        cores = {role: round(usage.percent / 100, 2) for role, usage in meter.read().items()}
        return Served(found.report, cores | {"load": round(found.cores, 2)})


def split_ms(folder: Path, point: Point, kind: str, seconds: float) -> dict[str, float]:
    """Milliseconds of a batch by what they were spent on, the GPU waited for after each step.

    `between` is what a worker does between two batches: reply, and gather the next one. Among the
    steps, `from_device` has softmax and the best classes; `rest` is what is left of a batch: rows
    in, JSON out.

    Raises:
        BenchmarkError: the server did not start or answered nothing.
    """
    with (
        _ferry(archive_path(folder, TIMED, point.decode), point, kind) as server,
        _loaders(server) as drive,
    ):
        drive(folder, point, WARM_UP_S)
        time.sleep(METRICS_S)
        before = server.totals()
        found = drive(folder, point, seconds)
        time.sleep(METRICS_S)
        spent = {name: value - before.get(name, 0.0) for name, value in server.totals().items()}
        return per_batch(spent, found.report.requests_per_s / point.workers)


def per_batch(spent: Mapping[str, float], images_per_s: float) -> dict[str, float]:
    """Returns the parts of one batch, in ms, and how many images it had.

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


def ingress_count() -> int:
    """Returns the number of ingresses, each of which gets a process of load of its own."""
    return max(1, min(MOST_INGRESSES, (os.cpu_count() or 1) // CORES_PER_INGRESS))


def _ferry(archive: Path, point: Point, kind: str) -> WideFerry:
    job = Job(
        model_name=point.network,
        archive=archive,
        batch_size=point.batch_size,
        max_batch_delay_ms=MAX_BATCH_DELAY_MS,
        job_queue_size=2 * _connections(point),
        workers=point.workers,
    )
    environment = {"FERRY_NUMBER_OF_GPU": "0"} if kind == "cpu" else None
    return WideFerry(job, environment, ingresses=ingress_count())


def _connections(point: Point) -> int:
    return BATCHES_PER_WORKER * point.batch_size * point.workers


@contextlib.contextmanager
def _loaders(server: WideFerry) -> Iterator[Callable[[Path, Point, float], Driven]]:
    """Drives all ingresses at once, by processes that stay between two runs."""
    urls = server.urls
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(urls), mp_context=context) as pool:

        def drive(folder: Path, point: Point, seconds: float) -> Driven:
            body = (folder / PHOTO).read_bytes()
            connections = -(-_connections(point) // len(urls))
            loads = [Load(url, body, "image/jpeg", connections) for url in urls]
            return together(list(pool.map(driven, loads, [seconds] * len(urls))))

        yield drive
