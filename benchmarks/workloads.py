"""What is compared: a model, how it is served and driven, and what torchferry has to reach."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.archives import write_archive
from benchmarks.servers import Job

HANDLER = Path(__file__).parent / "echo" / "echo.py"
TORCHSERVE, BARE_LOOP = "TorchServe", "bare loop"
SCORE_TOLERANCE = 1e-3

Answers = Literal["", "scores", "best"]


@dataclass(frozen=True, slots=True)
class Bar:
    """What torchferry has to reach beside one other server.

    `answers`: "scores", the five best classes are equal and their scores differ by SCORE_TOLERANCE
    at most; "best", the best class is equal.
    """

    rival: str
    least_ratio: float
    most_p99_ratio: float | None = None
    answers: Answers = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """`network` is the precision of ResNet-152, or empty for an echo of `body_bytes`."""

    title: str
    bars: tuple[Bar, ...]
    connections: int
    batch_size: int = 32
    max_batch_delay_ms: int = 5
    body_bytes: int = 1024
    network: Literal["", "float32", "bfloat16"] = ""
    seconds: float = 5.0
    servers: str = "torchserve,mosec,litserve,bentoml,rayserve"

    def setting(self) -> dict[str, Any]:
        """Returns how the model is served and driven, for the record."""
        record = asdict(self)
        for name in ("title", "bars", "seconds", "servers"):
            del record[name]
        return record


def _resnet(network: Literal["float32", "bfloat16"], title: str, *bars: Bar) -> Workload:
    return Workload(
        title,
        bars,
        connections=16,
        batch_size=8,
        max_batch_delay_ms=50,
        body_bytes=0,
        network=network,
        seconds=20.0,
        servers="torchserve,bare",
    )


WORKLOADS = {
    "echo": Workload(
        "Echo, 1 KiB, 64 connections", (Bar(TORCHSERVE, 2.5, most_p99_ratio=0.5),), connections=64
    ),
    "echo-256": Workload(
        "Echo, 1 KiB, 256 connections",
        (Bar(TORCHSERVE, 3.0),),
        connections=256,
        servers="torchserve,mosec",
    ),
    "echo-110k": Workload(
        "Echo, 110 kB, 64 connections",
        (Bar(TORCHSERVE, 1.2),),
        connections=64,
        body_bytes=110_000,
        servers="torchserve,mosec",
    ),
    "resnet": _resnet(
        "float32",
        "ResNet-152, float32",
        Bar(TORCHSERVE, 1.5, answers="scores"),
        Bar(BARE_LOOP, 0.95),
    ),
    "resnet-bf16": _resnet(
        "bfloat16",
        "ResNet-152, bfloat16",
        Bar(TORCHSERVE, 2.5, answers="best"),
        Bar(BARE_LOOP, 0.95),
    ),
}


def echo_job(workload: Workload, folder: Path) -> Job:
    """Writes the echo's archive into the folder."""
    archive = folder / "echo.mar"
    model = {"modelName": "echo", "modelVersion": "1.0", "handler": HANDLER.name}
    write_archive(archive, model, HANDLER)
    return Job(
        model_name="echo",
        archive=archive,
        own_archive=archive,
        weights=None,
        batch_size=workload.batch_size,
        max_batch_delay_ms=workload.max_batch_delay_ms,
        job_queue_size=max(100, workload.connections),
    )
