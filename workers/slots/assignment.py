"""Defines what a node and its worker process share: assignment, exit codes and deadline."""

import json
import math
import mmap
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from batching.models.spec import ModelSpec
from workers.machine import Device

ENV_NAME = "FERRY_ASSIGNMENT"
_BYTES = 16
# For a Redis that is away, and for clients that are slow.
WAIT_S = 30.0
# Makes the worker write its stacks and end. No handler uses it; SIGALRM is theirs.
SIGNAL_OF_LATE = signal.SIGVTALRM

EXIT_DRAINED = 0
EXIT_LOAD_FAILED = 3
EXIT_DEVICE_BROKEN = 4
EXIT_NOT_STARTED = os.EX_OSERR

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_CAUSES = {
    EXIT_LOAD_FAILED: "it could not load the model",
    EXIT_DEVICE_BROKEN: "the device is broken in that process",
    -signal.SIGKILL: "killed, perhaps for memory",
    **{-crash: f"crashed in native code: {crash.name}" for crash in _CRASHES},
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """Says which model a worker runs, where and under which name; JSON in its environment."""

    spec: ModelSpec
    worker_id: str
    model_dir: Path
    device: Device
    status_fd: int
    deadline_fd: int

    def to_environment(self) -> dict[str, str]:
        record = {**asdict(self), "spec": self.spec.to_record(), "model_dir": str(self.model_dir)}
        return {ENV_NAME: json.dumps(record)}

    @classmethod
    def from_environment(cls) -> Self:
        record = json.loads(os.environ[ENV_NAME])
        record["spec"] = ModelSpec.from_record(record["spec"])
        record["model_dir"] = Path(record["model_dir"])
        record["device"] = Device(**record["device"])
        return cls(**record)


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Keeps a return code as `subprocess` has it, and why the node ended the process, if it did."""

    code: int
    ended_for: str = ""

    @property
    def cause(self) -> str:
        return self.ended_for or _CAUSES.get(self.code, "")

    @property
    def is_out_of_memory(self) -> bool:
        return self.code == -signal.SIGKILL and not self.ended_for

    def __str__(self) -> str:
        return f'{self.code} cause="{self.cause}"' if self.cause else str(self.code)


def shared_memory() -> int:
    """Returns the descriptor of memory for a `Deadline` in two processes."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("deadline")
    else:
        descriptor, path = tempfile.mkstemp()
        os.unlink(path)  # noqa: PTH108
    os.ftruncate(descriptor, _BYTES)
    return descriptor


class Deadline:
    """Tells a worker's node when to end it; writing costs the worker one store to memory.

    Reading needs nothing of the worker: neither its interpreter's lock, nor its threads and
    signals, which the handler may hold or change. Without a descriptor, in a process that is no
    worker, nobody watches.
    """

    def __init__(
        self, descriptor: int = -1, run_s: float = math.inf, wait_s: float = WAIT_S
    ) -> None:
        """Lets a call of the handler, with its answer, take `run_s`, and other steps `wait_s`."""
        self._times = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")
        self._run_s = run_s
        self._wait_s = wait_s
        self._is_running = False

    @property
    def ends_at(self) -> float:
        """Returns when the process is to be ended, by the monotonic clock."""
        return self._times[0] or math.inf

    @property
    def turns(self) -> float:
        return self._times[1]

    def run(self) -> None:
        self._is_running = True
        self._times[0] = time.monotonic() + self._run_s

    def wait(self) -> None:
        """Begins a step without the handler: Redis or a client may be slow."""
        self._is_running = False
        self.pause()

    def look_for_work(self) -> None:
        self.wait()
        self._times[1] += 1

    def pause(self) -> None:
        """Lets a handler that runs wait for a client."""
        self.end(self._wait_s)

    def resume(self) -> None:
        """Starts the handler's time over, unless it has returned."""
        self.end(self._run_s)
        # A thread of the handler may still send after the handler has returned, and an idle worker
        # would be ended. Checked last, as the handler may return at any moment.
        if not self._is_running:
            self.wait()

    def end(self, seconds: float) -> None:
        """Has the process end within this time."""
        self._times[0] = time.monotonic() + seconds
