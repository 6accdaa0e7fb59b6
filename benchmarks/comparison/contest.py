"""Models, and torchferry beside other servers of them, all up at once and driven in turns."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.comparison.bare_process import BareLoop
from benchmarks.comparison.workloads import Network, Workload, network_job, request_path_jobs
from benchmarks.measuring.load import (
    BenchmarkError,
    Load,
    LoadReport,
    drive_to_the_end,
    drive_with_wrk,
)
from benchmarks.measuring.processors import times_s
from benchmarks.measuring.records import CACHE
from benchmarks.servers.archive_servers import Torchferry, TorchServe
from benchmarks.servers.child import run_module
from benchmarks.servers.environments import environment_python
from benchmarks.servers.mosec_server import Mosec
from benchmarks.servers.server import CONTENT_TYPE, Job, Server, json_answer
from benchmarks.servers.torchserve_env import torchserve_python

# Beside torchferry, as options name them, and as everything else does.
SERVERS = {"torchserve": TorchServe.name, "mosec": Mosec.name, "bare": BareLoop.name}
_CONTENT = bytes(range(128))
# TorchServe's JVM reaches its speed after some 20,000 requests, on a slow machine in ten seconds.
FIRST_WARM_UP_S, WARM_UP_S = 15.0, 3.0
CORES = os.cpu_count() or 1

OnRun = Callable[[str], None]
Participant = Server | BareLoop


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one server; times of processors in microseconds per request."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int
    # Of all processes of the server.
    cpu_us: float = 0.0
    # By kind of process: in its own code, in the kernel.
    kinds_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Of wrk, or whatever else drove it.
    load_us: float = 0.0
    # Of the machine's processors, what neither the server nor the load used meanwhile.
    others_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class Lineup:
    """Holds the servers that are up, others by the names of options, and why any are not."""

    ours: Torchferry
    before: Torchferry | None
    others: Mapping[str, Participant]
    left_out: Mapping[str, str]

    def among(self, names: Iterable[str]) -> list[Participant]:
        """Returns ours, these others as far as they are up, and ours of before."""
        others = [self.others[name] for name in names if name in self.others]
        return [self.ours, *others, *([self.before] if self.before else [])]


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs of one workload, by the names of the servers; run i of each is of turn i."""

    runs: Mapping[str, Sequence[Run]]
    versions: Mapping[str, str]
    # Of a network, for each photo: torchferry's and TorchServe's classes and scores.
    answers: Sequence[tuple[Mapping[str, float], Mapping[str, float]]] = ()


@dataclass(frozen=True, slots=True)
class Contest:
    """Models that are made, by their names, and the photos for a network."""

    jobs: Mapping[str, Job]
    photos: Sequence[Path] = ()

    @classmethod
    def prepared(cls, network: Network, folder: Path) -> "Contest":
        """Archives and photos lie in the folder. Takes half a minute for a network.

        Raises:
            BenchmarkError: the network cannot be made.
        """
        if not network:
            return cls(request_path_jobs(folder))
        run_module("resnet", folder)
        return cls(network_job(folder, network), sorted(folder.glob("photo-*.jpg")))

    def start(
        self, stack: ExitStack, names: Iterable[str], before: Path | None, *, is_quiet: bool
    ) -> Lineup:
        """Starts all servers, until the stack closes. What does not start is left out.

        Args:
            stack: ends the servers.
            names: of the other servers, as options name them.
            before: another working tree of torchferry, which is to run as well.
            is_quiet: whether TorchServe logs its warnings only.

        Raises:
            BenchmarkError: torchferry does not start.
        """
        jobs = self.jobs.values()
        ours = stack.enter_context(Torchferry(*jobs))
        earlier = stack.enter_context(Torchferry(*jobs, tree=before)) if before else None
        others: dict[str, Participant] = {}
        left_out: dict[str, str] = {}
        for name in names:
            try:
                others[name] = stack.enter_context(self._other(name, is_quiet=is_quiet))
            except BenchmarkError as error:
                left_out[name] = str(error)
        return Lineup(ours, earlier, others, left_out)

    def measure(
        self,
        workload: Workload,
        servers: Sequence[Participant],
        turns: int,
        seconds: float,
        on_run: OnRun,
        *,
        is_first: bool,
    ) -> Measured:
        """Checks and warms the servers and measures them in turns. Blocks for all runs.

        Args:
            workload: what is measured.
            servers: torchferry and others, up.
            turns: how many runs each server has.
            seconds: of each run.
            on_run: is told of each one.
            is_first: whether the servers are new, and take longer to become warm.

        Raises:
            BenchmarkError: one of them failed or answers wrongly.
        """
        runs: dict[str, list[Run]] = {server.name: [] for server in servers}
        for server in servers:
            self._check(workload, server)
            self._run(workload, server, FIRST_WARM_UP_S if is_first else WARM_UP_S)
            on_run(f"{workload.title}, warm: {server.name}")
        for turn in range(1, turns + 1):
            for server in servers:
                run = self._run(workload, server, seconds)
                runs[server.name].append(run)
                told = f"{run.requests_per_s:,.0f} requests/s, p50 {run.p50_ms:.2f} ms"
                on_run(f"{workload.title}, {turn} of {turns}: {server.name}: {told}")
        versions = {server.name: server.version for server in servers}
        return Measured(runs, versions, self._answers(servers))

    def _answers(
        self, servers: Sequence[Participant]
    ) -> list[tuple[dict[str, float], dict[str, float]]]:
        """Returns what torchferry and TorchServe say of each photo."""
        asked = [one for one in servers if one.name in (Torchferry.name, TorchServe.name)]
        each = [
            [_scores(server, *self.jobs, photo) for photo in self.photos]
            for server in asked
            if isinstance(server, Server)
        ]
        return list(zip(*each, strict=True)) if len(each) > 1 else []

    def _other(self, name: str, *, is_quiet: bool) -> Participant:
        jobs = [job for job in self.jobs.values() if not job.own_parameters]
        if name == "torchserve":
            return TorchServe(torchserve_python(CACHE), *jobs, is_quiet=is_quiet)
        if name == "bare" and self.photos:
            return BareLoop(jobs[0], self.photos[0])
        if name == "mosec" and not self.photos:
            installs = (Mosec.requirements,)
            return Mosec(environment_python(CACHE, f"mosec-{Mosec.version}", installs), *jobs)
        raise BenchmarkError(f"{name} does not serve {', '.join(self.jobs)}")

    def _check(self, workload: Workload, server: Participant) -> None:
        if self.photos or isinstance(server, BareLoop):
            return
        answer = server.ask(workload.model, _CONTENT)
        if answer != workload.expected(_CONTENT):
            raise BenchmarkError(f"{server.name} answers to {workload.model}: {answer[:200]!r}")

    def _run(self, workload: Workload, server: Participant, seconds: float) -> Run:
        if isinstance(server, BareLoop):
            return _without_server(server.measure(seconds))
        load = self._load(workload, server)
        pids = server.processes()
        before, load_before_s, started_s = times_s(pids), _load_s(), time.perf_counter()
        psutil.cpu_percent()
        report = (drive_to_the_end if self.photos else drive_with_wrk)(load, seconds)
        elapsed_s = time.perf_counter() - started_s
        busy_s = psutil.cpu_percent() / 100 * elapsed_s * CORES
        after, load_s = times_s(pids), _load_s() - load_before_s
        per_request_us = 1e6 / (report.requests_per_s * elapsed_s)
        kinds_us = {
            kind: tuple(
                round((now - then) * per_request_us, 2)
                for now, then in zip(after[kind], before[kind], strict=True)
            )
            for kind in pids
        }
        cpu_us, load_us = sum(map(sum, kinds_us.values())), load_s * per_request_us
        others_s = max(0.0, busy_s - (cpu_us + load_us) / per_request_us)
        return Run(
            report.requests_per_s,
            report.p50_ms,
            report.p99_ms,
            report.errors,
            cpu_us=round(cpu_us, 2),
            kinds_us=kinds_us,
            load_us=round(load_us, 2),
            others_percent=round(100 * others_s / elapsed_s / CORES, 1),
        )

    def _load(self, workload: Workload, server: Server) -> Load:
        body = self.photos[0].read_bytes() if self.photos else b"x" * workload.body_bytes
        return Load(
            url=server.url_of(workload.model),
            body=body,
            content_type=CONTENT_TYPE,
            connections=workload.connections,
            # An echo that answers without the body would be fast and wrong.
            least_answer_bytes=0 if self.photos else len(workload.expected(body)),
        )


def _without_server(report: LoadReport) -> Run:
    return Run(report.requests_per_s, report.p50_ms, report.p99_ms, report.errors)


def _load_s() -> float:
    """Returns the processor time so far of this process, and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _scores(server: Server, model_name: str, photo: Path) -> dict[str, float]:
    answer = json_answer(server.ask(model_name, photo.read_bytes()))
    if not isinstance(answer, dict) or not answer:
        raise BenchmarkError(f"{server.name} does not answer with classes: {answer!r}")
    return {str(name): float(score) for name, score in answer.items()}
