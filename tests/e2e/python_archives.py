"""Makes archives of Python models: folders in a server's store."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SETTINGS = {"batchSize": 16, "maxBatchDelay": 10, "batchPolicy": "adaptive", "maxWorkers": 1}


def make_python_model(
    store: Path, name: str, target: str, source: str, settings: Mapping[str, Any] = SETTINGS
) -> str:
    """Writes the archive of `target`, a name in the source; returns the archive's name."""
    folder = store / name
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    (folder / "model-config.yaml").write_text(json.dumps({"minWorkers": 1, **settings}))
    model = {
        "modelName": name,
        "modelVersion": "1.0",
        "handler": "python_model",
        "target": f"{name}.py:{target}",
        "configFile": "model-config.yaml",
    }
    manifest = {"runtime": "python", "model": model}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    return name
