"""Runs the ingress processes of a host, which share its ports (ADR 0021)."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batching.process.cores import usable_cores
from batching.process.part import Launch
from batching.process.siblings import Siblings
from batching.settings.settings import Settings
from ferry.process_tree.embedded_redis import short_temporary_folder
from ferry.process_tree.log_files import LogFiles
from ferry.process_tree.part_process import PartProcess
from ferry.process_tree.ready_pipe import ReadyPipe
from ferry.process_tree.supervisor import Part, Supervisor

_MOST = 4
_CORES_EACH = 4
_GROUP = "ingress"


def count_by_cores(settings: Settings) -> int:
    """Returns how many ingress processes `ferry up` runs: by its cores, unless a setting says."""
    if settings.ingress_processes or settings.inference_address.startswith("unix:"):
        return settings.ingress_processes or 1
    return max(1, min(_MOST, usable_cores() // _CORES_EACH))


@dataclass(frozen=True, slots=True)
class Ingresses:
    """Starts the ingress processes; each says through a pipe of its own when it is ready."""

    processes: list[PartProcess]

    def parts(self, stop_share: float) -> list[Part]:
        """Returns what the supervisor starts; the first one has the group's name."""
        return [
            Part(f"{_GROUP} {number}" if number > 1 else _GROUP, one.start, stop_share, _GROUP)
            for number, one in enumerate(self.processes, start=1)
        ]

    def start(self, supervisor: Supervisor) -> None:
        """Starts them and waits until all are ready.

        The first one is alone until it has loaded the startup models, as no client must hear from
        another one that the server is ready.
        """
        names = [part.name for part in self.parts(0.0)]
        for some in (slice(0, 1), slice(1, None)):
            supervisor.start(*names[some])
            for process in self.processes[some]:
                supervisor.wait_until(process.ready.poll, process.ready.read_fd)

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Returns the startup models that could not be loaded."""
        return self.processes[0].ready.failures


@contextlib.contextmanager
def prepared_ingresses(
    settings: Settings, count: int, launch: Launch, logs: LogFiles | None = None
) -> Iterator[Ingresses]:
    """Opens the pipes and makes the processes' common folder; none is started yet."""
    with contextlib.ExitStack() as cleanup:
        folder = Path()
        if count > 1:
            folder = short_temporary_folder("ferry-ingress-")
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        processes = []
        for number in range(1, count + 1):
            ready = cleanup.enter_context(contextlib.closing(ReadyPipe()))
            variables = Siblings(number, count, folder).to_environment()
            processes.append(PartProcess("ingress", settings, ready, launch, logs, variables))
        yield Ingresses(processes)
