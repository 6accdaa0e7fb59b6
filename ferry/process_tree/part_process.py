"""Starts a part, an ingress or a node, as a child process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from batching.process.child_process import spawn
from batching.process.part import LAUNCH_VARIABLE, READY_VARIABLE, Launch
from batching.settings.settings import Settings
from ferry.process_tree.log_files import LogFiles
from ferry.process_tree.ready_pipe import ReadyPipe


@dataclass(frozen=True, slots=True)
class PartProcess:
    """Starts the process of a part. `launch` is how it is started the first time."""

    package: str
    settings: Settings
    ready: ReadyPipe
    launch: Launch
    logs: LogFiles | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the process; the first one says through the pipe when it is ready."""
        env = {**os.environ, **self.settings.to_environment(), **self.variables}
        env |= self.logs.variables if self.logs else {}
        env |= {READY_VARIABLE: "", LAUNCH_VARIABLE: Launch.AGAIN}
        fds = self.ready.writer()
        for fd in fds:
            env |= {READY_VARIABLE: str(fd), LAUNCH_VARIABLE: self.launch}
        # -P: a folder `workers` in the user's current directory must not be run instead of ours.
        process = spawn(
            [sys.executable, "-P", "-m", self.package],
            env,
            fds,
            stdout=None if self.logs is None else self.logs.stdout_fd,
            stderr=None if self.logs is None else self.logs.stderr_fd,
        )
        self.ready.hand_over()
        return process
