"""What a node tells a worker process before it starts, as one JSON value in its environment."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from batching.models.spec import ModelSpec
from workers.machine.devices import Device

ENV_NAME = "FERRY_ASSIGNMENT"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One worker's model, device and name."""

    spec: ModelSpec
    worker_id: str
    model_dir: Path
    device: Device
    status_fd: int

    def to_environment(self) -> dict[str, str]:
        """Returns the variable that `from_environment` reads."""
        record = {
            "spec": self.spec.to_record(),
            "worker_id": self.worker_id,
            "model_dir": str(self.model_dir),
            "device_kind": self.device.kind,
            "device_index": self.device.index,
            "status_fd": self.status_fd,
        }
        return {ENV_NAME: json.dumps(record)}

    @classmethod
    def from_environment(cls) -> Self:
        """Returns the assignment of this process.

        Raises:
            KeyError: the process was not started by a node.
        """
        record = json.loads(os.environ[ENV_NAME])
        return cls(
            spec=ModelSpec.from_record(record["spec"]),
            worker_id=record["worker_id"],
            model_dir=Path(record["model_dir"]),
            device=Device(record["device_kind"], record["device_index"]),
            status_fd=record["status_fd"],
        )
