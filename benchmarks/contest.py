"""One workload: its model and bodies, and torchferry beside one other server at a time, A B A B."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.app_servers import APP_SERVERS
from benchmarks.archive_servers import Torchferry, TorchServe
from benchmarks.bare_process import BareLoop
from benchmarks.child import run_module
from benchmarks.environments import environment_python
from benchmarks.load import BenchmarkError, Load, LoadReport, drive_to_the_end, drive_with_wrk
from benchmarks.records import CACHE
from benchmarks.servers import Job, Server, json_answer
from benchmarks.torchserve_env import torchserve_python
from benchmarks.workloads import Workload, echo_job

# As an option names them, and as everything else does.
SERVERS = {
    "torchserve": TorchServe.name,
    **{name: kind.name for name, kind in APP_SERVERS.items()},
    "bare": BareLoop.name,
}
_CONTENT = bytes(range(128))

OnRun = Callable[[str], None]
Rival = Server | BareLoop


@dataclass(slots=True)
class Pairs:
    """The runs beside one other server; run i of both is pair i."""

    rival: str
    version: str
    ours: list[LoadReport] = field(default_factory=list)
    theirs: list[LoadReport] = field(default_factory=list)
    # One per photo, for networks: torchferry's and the other's classes and scores.
    answers: list[tuple[dict[str, float], dict[str, float]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Contest:
    """A workload with its model made and its bodies read."""

    workload: Workload
    job: Job
    bodies: list[bytes]
    photo: Path | None

    @classmethod
    def prepared(cls, workload: Workload, folder: Path) -> "Contest":
        """Archives and photos lie in the folder. Takes half a minute for a network.

        Raises:
            BenchmarkError: the network cannot be made.
        """
        if not workload.network:
            return cls(workload, echo_job(workload, folder), [b"x" * workload.body_bytes], None)
        run_module("resnet", folder)
        photos = sorted(folder.glob("photo-*.jpg"))
        name = "resnet-152"
        is_half = workload.network == "bfloat16"
        job = Job(
            model_name=name,
            archive=folder / f"{name}.mar",
            own_archive=folder / (f"{name}-bfloat16.mar" if is_half else f"{name}.mar"),
            weights=folder / f"{name}.pt",
            batch_size=workload.batch_size,
            max_batch_delay_ms=workload.max_batch_delay_ms,
        )
        return cls(workload, job, [photo.read_bytes() for photo in photos], photos[0])

    def torchferry(self) -> Torchferry:
        """Ours, not yet started."""
        return Torchferry(self.job)

    def rival(self, name: str, *, is_quiet: bool) -> Rival:
        """Returns the other server, installed and not yet started.

        Raises:
            BenchmarkError: it cannot be installed here, or is none for this workload.
        """
        if name == "torchserve":
            return TorchServe(torchserve_python(CACHE), self.job, is_quiet=is_quiet)
        if name == "bare":
            if self.photo is None:
                raise BenchmarkError("an echo without a server is nothing")
            return BareLoop(self.job, self.photo)
        kind = APP_SERVERS[name]
        python = environment_python(CACHE, f"{name}-{kind.version}", (kind.requirements,))
        return kind(python, self.job)

    def measure(
        self, ours: Server, rival: Rival, pairs: int, seconds: float, on_run: OnRun
    ) -> Pairs:
        """Checks and warms both servers and measures them in turns. Blocks for all runs.

        TorchServe's JVM reaches its speed after some 20,000 requests.

        Raises:
            BenchmarkError: one of them failed or answers wrongly.
        """
        found = Pairs(rival.name, rival.version)
        if isinstance(rival, Server):
            self.check(ours)
            self.check(rival)
            if self.workload.network:
                found.answers = [(_scores(ours, one), _scores(rival, one)) for one in self.bodies]
        for number in range(-1, pairs):
            what = f"pair {number + 1} of {pairs}" if number >= 0 else "warm-up"
            for server, reports in ((rival, found.theirs), (ours, found.ours)):
                on_run(f"{what}: {server.name}")
                report = self._drive(server, seconds)
                if number >= 0:
                    reports.append(report)
        return found

    def check(self, server: Server) -> None:
        """Checks that an echo answers with its request's body.

        Raises:
            BenchmarkError: it does not.
        """
        if not self.workload.network and (answer := server.ask(_CONTENT)) != _CONTENT:
            raise BenchmarkError(f"{server.name} does not echo: {answer[:200]!r}")

    def _drive(self, server: Rival, seconds: float) -> LoadReport:
        if isinstance(server, BareLoop):
            return server.measure(seconds)
        drive = drive_to_the_end if self.workload.network else drive_with_wrk
        return drive(self.load(server), seconds)

    def load(self, server: Server) -> Load:
        """Returns how this server is driven."""
        return Load(
            url=server.url,
            body=server.packed(self.bodies[0]),
            content_type=server.content_type,
            connections=self.workload.connections,
            # An echo that answers without the body would be fast and wrong.
            least_answer_bytes=self.workload.body_bytes,
        )


def _scores(server: Server, photo: bytes) -> dict[str, float]:
    answer = json_answer(server.ask(photo))
    if not isinstance(answer, dict) or not answer:
        raise BenchmarkError(f"{server.name} does not answer with classes: {answer!r}")
    return {str(name): float(score) for name, score in answer.items()}
