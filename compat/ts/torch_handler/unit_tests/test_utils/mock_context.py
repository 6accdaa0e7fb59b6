"""Has a context for tests of handlers outside of a server."""

import uuid
from pathlib import Path
from typing import Any

import torch

from ts.metrics import MetricsStore
from ts.utils.util import get_yaml_config


class MockContext:
    def __init__(  # noqa: PLR0917 - TorchServe's order
        self,
        model_pt_file: str | None = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: str | None = "model.py",
        gpu_id: str | None = "0",
        model_name: str = "mnist",
        model_yaml_config_file: str | None = None,
    ) -> None:
        model: dict[str, Any] = {"modelName": model_name}
        if model_pt_file:
            model["serializedFile"] = model_pt_file
        if model_file:
            model["modelFile"] = model_file
        self.manifest = {"model": model}
        self.model_name = model_name
        self.model_yaml_config: dict[str, Any] = {}
        if model_yaml_config_file:
            self.model_yaml_config = get_yaml_config(Path(model_dir) / model_yaml_config_file)
        self.system_properties: dict[str, Any] = {"model_dir": model_dir}
        if torch.cuda.is_available() and gpu_id:
            self.system_properties["gpu_id"] = gpu_id
        self.request_ids = {0: "0"}
        self.explain = False
        self.metrics = MetricsStore(uuid.uuid4(), model_name)

    def get_request_header(self, idx: int, key: str) -> str | bool:
        return key == "explain" and idx == 0 and self.explain
