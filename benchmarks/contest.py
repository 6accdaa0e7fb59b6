"""What `benchmarks.compare` compares: models, the servers of them, and one run of one server."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring.load import Load, drive, drive_with_wrk
from benchmarks.measuring.processors import times_s
from benchmarks.measuring.records import BenchmarkError
from benchmarks.servers.child import run_module, write_archive
from benchmarks.servers.installed import environment_of, torchserve_python
from benchmarks.servers.running import (
    HANDLERS,
    Mosec,
    ServedModel,
    Server,
    Torchferry,
    TorchServe,
)
from workers.slots.worker_process import ALLOCATOR

TORCHSERVE, MOSEC, BARE_LOOP = TorchServe.name, Mosec.name, "bare loop"
# Beside torchferry, as options name them, and as everything else does.
SERVERS = {"torchserve": TORCHSERVE, "mosec": MOSEC, "bare": BARE_LOOP}
KIB, PHOTO_BYTES, MB = 1024, 110_000, 1_000_000
BATCH_SIZE, DELAY_MS, QUEUE_SIZE = 32, 5, 256
RESNET = "resnet-152"
CORES = os.cpu_count() or 1
_CONTENT = bytes(range(128))


@dataclass(frozen=True, slots=True)
class Bar:
    """Sets what torchferry has to reach: `limit` times the rival's figure, a median of runs."""

    figure: str
    limit: float
    rival: str = TORCHSERVE


@dataclass(frozen=True, slots=True)
class Workload:
    """Says how a model is driven; a network answers photos."""

    title: str
    bars: tuple[Bar, ...]
    model: str
    connections: int
    body_bytes: int = KIB
    is_network: bool = False
    seconds: int = 5
    servers: tuple[str, ...] = ("torchserve", "mosec")

    def expected(self, body: bytes) -> bytes:
        """Returns the answer to this body, unless the model is a network."""
        return b"%d %d" % (len(body), body[-1]) if self.model == "label" else body


def _echo(connections: int) -> Workload:
    bars = (Bar("requests_per_s", 3.0), Bar("p99_ms", 0.4), Bar("requests_per_s", 0.8, MOSEC))
    return Workload(f"Echo, 1 KiB, {connections} connections", bars, "echo", connections)


def _bodies(title: str, model: str, body_bytes: int, least_ratio: float) -> Workload:
    bars = (Bar("requests_per_s", least_ratio), Bar("cpu_us", 0.45))
    return Workload(title, bars, model, 64, body_bytes)


WORKLOADS = {
    "echo": _echo(64),
    "echo-256": _echo(256),
    "label-110k": _bodies("110 kB in, a label out", "label", PHOTO_BYTES, 2.0),
    "label-1m": _bodies("1 MB in, a label out", "label", MB, 1.5),
    "echo-110k": _bodies("110 kB in, 110 kB out", "echo", PHOTO_BYTES, 1.5),
    "resnet": Workload(
        "ResNet-152",
        (Bar("requests_per_s", 1.5), Bar("requests_per_s", 0.95, BARE_LOOP)),
        RESNET,
        connections=16,
        body_bytes=0,
        is_network=True,
        seconds=20,
        servers=("torchserve", "bare"),
    ),
}


class BareLoop:
    """The handler in a loop without any server; each run is a process of its own."""

    name, version = BARE_LOOP, ""

    def __init__(self, model: ServedModel, photo: Path) -> None:
        self._model, self._photo = model, photo

    def run(self, seconds: float) -> dict[str, Any]:
        model = self._model
        words = (model.archive, self._photo, model.batch_size, seconds)
        # A worker's environment, as far as it matters for speed.
        environment = ALLOCATOR | os.environ | model.threads
        line = run_module("bare_loop", "handler", *words, environment=environment)
        report: Run = json.loads(line)
        return report | {"cpu_us": 0.0, "kinds_us": {}, "load_us": 0.0, "others_percent": 0.0}


Participant = Server | BareLoop
Run = dict[str, Any]


def prepare(folder: Path, *, is_network: bool) -> tuple[list[ServedModel], list[Path]]:
    """Writes the archives into the folder, of a network with photos, which takes half a minute."""
    if is_network:
        run_module("networks", "resnet", folder)
        model = ServedModel(RESNET, folder / f"{RESNET}.mar", 8, 50)
        return [model], sorted(folder.glob("photo-*.jpg"))
    models = []
    for name in ("echo", "label"):
        archive = folder / f"{name}.mar"
        write_archive(archive, {"handler": f"{HANDLERS.name}:{name}"}, HANDLERS)
        models.append(ServedModel(name, archive, BATCH_SIZE, DELAY_MS, QUEUE_SIZE))
    return models, []


def other(name: str, models: list[ServedModel], photos: list[Path]) -> Participant:
    """Returns the server beside torchferry that an option names.

    Raises:
        BenchmarkError: it cannot be installed, or has no such model.
    """
    if name == "torchserve":
        return TorchServe(*models, python=torchserve_python())
    if name == "bare" and photos:
        return BareLoop(models[0], photos[0])
    if name == "mosec" and not photos:
        return Mosec(*models, python=environment_of(f"mosec=={Mosec.version}"))
    raise BenchmarkError(f"{name} does not serve {models[0].name}")


def check(workload: Workload, server: Participant) -> None:
    """Asks once.

    Raises:
        BenchmarkError: an echo does not echo, or a label is wrong.
    """
    if isinstance(server, BareLoop) or workload.is_network:
        return
    answer = server.ask(workload.model, _CONTENT)
    if answer != workload.expected(_CONTENT):
        raise BenchmarkError(f"{server.name} answers to {workload.model}: {answer[:200]!r}")


def run_once(workload: Workload, server: Participant, photos: list[Path], seconds: float) -> Run:
    """Returns the figures of one run, times of processors in microseconds per request.

    `cpu_us` is of all processes of the server, `kinds_us` by kind: own code, kernel; `load_us` of
    what drove it; `others_percent` of the machine's processors is what neither used meanwhile.
    """
    if isinstance(server, BareLoop):
        return server.run(seconds)
    body = photos[0].read_bytes() if photos else b"x" * workload.body_bytes
    # An echo that answers without the body would be fast and wrong.
    least_answer_bytes = 0 if photos else len(workload.expected(body))
    url = server.url_of(workload.model)
    load = Load(url, body, workload.connections, least_answer_bytes=least_answer_bytes)
    pids = server.processes()
    before, load_before_s, started_s = times_s(pids), _load_s(), time.perf_counter()
    psutil.cpu_percent()
    report = drive(load, seconds).report() if photos else drive_with_wrk(load, seconds)
    elapsed_s = time.perf_counter() - started_s
    busy_s = psutil.cpu_percent() / 100 * elapsed_s * CORES
    after, load_s = times_s(pids), _load_s() - load_before_s
    per_request_us = 1e6 / (report.requests_per_s * elapsed_s)
    kinds_us = {}
    for kind, members in pids.items():
        both = [(after[pid], before[pid]) for pid in members if pid in after and pid in before]
        spent_s = (sum(now[i] - then[i] for now, then in both) for i in (0, 1))
        kinds_us[kind] = [round(one * per_request_us, 2) for one in spent_s]
    cpu_us, load_us = sum(map(sum, kinds_us.values())), load_s * per_request_us
    others_s = max(0.0, busy_s - (cpu_us + load_us) / per_request_us)
    return {
        **asdict(report),
        "cpu_us": round(cpu_us, 2),
        "kinds_us": kinds_us,
        "load_us": round(load_us, 2),
        "others_percent": round(100 * others_s / elapsed_s / CORES, 1),
    }


def _load_s() -> float:
    """Returns the processor time so far of this process, and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def agreement(ours: Torchferry, theirs: Server, photos: list[Path]) -> dict[str, Any]:
    """Compares both servers' answers to the photos; the difference is the largest of two scores."""
    pairs = [(_scores(ours, photo), _scores(theirs, photo)) for photo in photos]
    differences = [
        abs(one.get(name, 0.0) - other.get(name, 0.0))
        for one, other in pairs
        for name in {*one, *other}
    ]
    return {
        "photos": len(pairs),
        "has_same_five": all(set(one) == set(other) for one, other in pairs),
        "largest_difference": round(max(differences), 6),
    }


def _scores(server: Server, photo: Path) -> Mapping[str, float]:
    scores: dict[str, float] = json.loads(server.ask(RESNET, photo.read_bytes()))
    return scores
