"""Defines what a node tells a worker process at its start, and with which codes that exits."""

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from batching.models.spec import ModelSpec
from workers.machine import Device

ENV_NAME = "FERRY_ASSIGNMENT"

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
