"""The parts of a whole server that are Python processes: the node and the ingresses."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from batching.process.child_process import spawn
from batching.process.cores import usable_cores
from batching.process.part import LAUNCH_VARIABLE, READY_VARIABLE, Launch
from batching.process.siblings import Siblings
from batching.settings.settings import Settings
from ferry.process_tree.log_files import LogFiles
from ferry.process_tree.supervisor import Part, ReadyPipe, Supervisor

_MOST_INGRESSES = 4
_CORES_EACH = 4
_INGRESS = "ingress"
_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class PartMaker:
    """Makes the parts of one server; `launch` is how each is started the first time."""

    launch: Launch
    logs: LogFiles | None = None

    def part(  # noqa: PLR0917 - the first four describe the part
        self,
        name: str,
        package: str,
        settings: Settings,
        stop_share: float,
        group: str = "",
        variables: Mapping[str, str] = _NOTHING,
    ) -> Part:
        ready, logs = ReadyPipe(), self.logs

        def start() -> subprocess.Popen[bytes]:
            env = {**os.environ, **settings.to_environment(), **variables}
            env |= logs.variables if logs else {}
            env |= {READY_VARIABLE: "", LAUNCH_VARIABLE: Launch.AGAIN}
            for fd in (fds := ready.writer()):
                env |= {READY_VARIABLE: str(fd), LAUNCH_VARIABLE: self.launch}
            # -P: a folder `workers` in the user's current directory must not be run instead.
            process = spawn(
                [sys.executable, "-P", "-m", package],
                env,
                fds,
                stdout=None if logs is None else logs.stdout_fd,
                stderr=None if logs is None else logs.stderr_fd,
            )
            ready.hand_over()
            return process

        return Part(name, start, stop_share, group, ready)

    def ingresses(
        self, settings: Settings, count: int, folder: Path, stop_share: float
    ) -> list[Part]:
        return [
            self.part(
                f"{_INGRESS} {number}" if number > 1 else _INGRESS,
                "ingress",
                settings,
                stop_share,
                _INGRESS,
                Siblings(number, count, folder).to_environment(),
            )
            for number in range(1, count + 1)
        ]


def count_by_cores(settings: Settings) -> int:
    """Returns how many ingress processes `ferry up` runs: by its cores, unless a setting says."""
    if settings.ingress_processes or settings.inference_address.startswith("unix:"):
        return settings.ingress_processes or 1
    return max(1, min(_MOST_INGRESSES, usable_cores() // _CORES_EACH))


def start_ingresses(supervisor: Supervisor, ingresses: list[Part]) -> None:
    """Starts them and waits until all are ready.

    The first one is alone until it has loaded the startup models, as no client must hear from
    another one that the server is ready.
    """
    for together in (ingresses[:1], ingresses[1:]):
        supervisor.start(*together)
        supervisor.wait_until_ready(*together)
