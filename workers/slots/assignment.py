"""What a node tells a worker process before it starts, as one JSON value in its environment."""

import json
import os
from dataclasses import asdict, dataclass
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
    deadline_fd: int

    def to_environment(self) -> dict[str, str]:
        """Returns the variable that `from_environment` reads."""
        record = {**asdict(self), "spec": self.spec.to_record(), "model_dir": str(self.model_dir)}
        return {ENV_NAME: json.dumps(record)}

    @classmethod
    def from_environment(cls) -> Self:
        record = json.loads(os.environ[ENV_NAME])
        record["spec"] = ModelSpec.from_record(record["spec"])
        record["model_dir"] = Path(record["model_dir"])
        record["device"] = Device(**record["device"])
        return cls(**record)
