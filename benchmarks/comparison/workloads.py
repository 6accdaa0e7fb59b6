"""What is compared: a model, how it is served and driven, and what torchferry has to reach."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.servers.archives import write_archive
from benchmarks.servers.server import Job

TORCHSERVE, MOSEC, BARE_LOOP = "TorchServe", "mosec", "bare loop"
SCORE_TOLERANCE = 1e-3
KIB, PHOTO_BYTES, MB = 1024, 110_000, 1_000_000
BATCH_SIZE, MAX_BATCH_DELAY_MS, QUEUE_SIZE = 32, 5, 256

Answers = Literal["", "scores", "best"]
Network = Literal["", "float32", "bfloat16"]
# Of the medians of a server's runs; of the first one more is better, of the others less.
Figure = Literal["requests_per_s", "p50_ms", "p99_ms", "cpu_us"]


@dataclass(frozen=True, slots=True)
class Bar:
    """Sets what torchferry has to reach: `limit` times the rival's figure, or `limit` itself."""

    figure: Figure
    limit: float
    rival: str = TORCHSERVE


@dataclass(frozen=True, slots=True)
class Workload:
    """Says how a model is driven.

    `network` is the precision of ResNet-152, or empty. `answers` says how far the network has to
    answer as in TorchServe: "scores", the five best classes are equal and their scores differ by
    SCORE_TOLERANCE at most; "best", the best class is equal.
    """

    title: str
    bars: tuple[Bar, ...]
    model: str
    connections: int
    body_bytes: int = KIB
    network: Network = ""
    answers: Answers = ""
    seconds: float = 5.0
    servers: tuple[str, ...] = ("torchserve", "mosec")

    def setting(self) -> dict[str, Any]:
        """Returns how the model is driven, for the record."""
        record = asdict(self)
        for name in ("title", "bars", "seconds", "servers", "answers"):
            del record[name]
        return record

    def expected(self, body: bytes) -> bytes:
        """Returns the answer to this body, unless the model is a network."""
        return b"%d %d" % (len(body), body[-1]) if self.model == "label" else body


def _echo(connections: int) -> Workload:
    return Workload(
        f"Echo, 1 KiB, {connections} connections",
        (
            Bar("requests_per_s", 3.0),
            Bar("p99_ms", 0.4),
            Bar("requests_per_s", 0.8, MOSEC),
        ),
        "echo",
        connections,
    )


def _bodies(title: str, model: str, body_bytes: int, least_ratio: float) -> Workload:
    bars = (Bar("requests_per_s", least_ratio), Bar("cpu_us", 0.45))
    return Workload(title, bars, model, connections=64, body_bytes=body_bytes)


def _resnet(network: Network, answers: Answers, least_ratio: float) -> Workload:
    return Workload(
        f"ResNet-152, {network}",
        (Bar("requests_per_s", least_ratio), Bar("requests_per_s", 0.95, BARE_LOOP)),
        "resnet-152",
        connections=16,
        body_bytes=0,
        network=network,
        answers=answers,
        seconds=20.0,
        servers=("torchserve", "bare"),
    )


WORKLOADS = {
    "echo": _echo(64),
    "echo-256": _echo(256),
    "one-client": Workload("Echo, 1 KiB, one client", (Bar("p50_ms", 1.0),), "echo", connections=1),
    "one-client-adaptive": Workload(
        "Echo, 1 KiB, one client, adaptive batching",
        (Bar("p50_ms", 1.2, ""),),
        "adaptive",
        connections=1,
        servers=(),
    ),
    "label-110k": _bodies("110 kB in, a label out", "label", PHOTO_BYTES, 2.0),
    "label-1m": _bodies("1 MB in, a label out", "label", MB, 1.5),
    "echo-110k": _bodies("110 kB in, 110 kB out", "echo", PHOTO_BYTES, 1.5),
    "resnet": _resnet("float32", "scores", 1.5),
    "resnet-bf16": _resnet("bfloat16", "best", 2.5),
}
# What `make bench-compare` measures: the request path. A network takes longer than all of them.
REQUEST_PATH = tuple(name for name, workload in WORKLOADS.items() if not workload.network)


def request_path_jobs(folder: Path) -> dict[str, Job]:
    """Writes the archives of echo and label into the folder; returns the models by their names."""
    jobs = {name: _job(folder, name, f"{name}_handler.py") for name in ("echo", "label")}
    adaptive = _job(folder, "adaptive", "echo_handler.py", batch_policy="adaptive")
    return jobs | {"adaptive": adaptive}


def network_job(folder: Path, network: Network) -> dict[str, Job]:
    """Returns the network whose archives lie in the folder."""
    name = "resnet-152"
    own = folder / (f"{name}-bfloat16.mar" if network == "bfloat16" else f"{name}.mar")
    archive = folder / f"{name}.mar"
    return {name: Job(name, archive, batch_size=8, max_batch_delay_ms=50, own_archive=own)}


def _job(folder: Path, name: str, handler_name: str, **own_parameters: str) -> Job:
    archive = folder / f"{name}.mar"
    handler = Path(__file__).with_name(handler_name)
    model = {"modelName": name, "modelVersion": "1.0", "handler": handler.name}
    write_archive(archive, model, handler)
    return Job(
        model_name=name,
        archive=archive,
        batch_size=BATCH_SIZE,
        max_batch_delay_ms=MAX_BATCH_DELAY_MS,
        job_queue_size=QUEUE_SIZE,
        own_parameters=own_parameters,
    )
