"""Fills the model store of both servers: archives by torch-model-archiver, and broken ones."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHIVER = Path(sys.executable).with_name("torch-model-archiver")
HANDLERS = Path(__file__).with_name("handlers")

STARTUP_CONFIG = """\
minWorkers: 1
maxWorkers: 1
batchSize: 3
maxBatchDelay: 20
responseTimeout: 33
startupTimeout: 44
deviceType: cpu
handler:
  colour: green
"""


@dataclass(frozen=True)
class Model:
    """The arguments for torch-model-archiver; the archive has the model's name."""

    name: str
    handler: str
    version: str = "1.0"
    file_name: str = ""
    config: str = ""
    archive_format: str = "default"
    runtime: str = "python"


MODELS = (
    Model("probe", "probe.py"),
    Model("probe", "probe.py", version="2.0", file_name="probe_v2.mar"),
    Model("startup", "probe.py", config=STARTUP_CONFIG),
    Model("described", "described.py"),
    Model("function", "function:serve_it"),
    Model("one-class", "one_class.py"),
    Model("broken", "broken.py"),
    Model("too-large", "too_large.py"),
    Model("narrow", "probe.py", config="jobQueueSize: 1\n"),
    Model("wrong-config", "probe.py", config="batchSize: many\nminWorkers: one\nmaxWorkers: 1\n"),
    Model("packed", "probe.py", archive_format="tgz"),
    Model("folder", "probe.py", archive_format="no-archive"),
    Model("old-runtime", "probe.py", runtime="python3"),
)

_MODEL = {"modelName": "odd", "modelVersion": "1.0", "handler": "probe.py"}

# Manifests that the archiver would not write; a string is stored as it is.
ODD_MANIFESTS: dict[str, Any] = {
    "no-json": "{ no json",
    "list": ["a", "list"],
    "no-model": {"runtime": "python"},
    "no-name": {"runtime": "python", "model": {"modelVersion": "1.0", "handler": "probe.py"}},
    "no-version": {"runtime": "python", "model": {"modelName": "odd", "handler": "probe.py"}},
    "no-handler": {"runtime": "python", "model": {"modelName": "odd-h", "modelVersion": "1.0"}},
    "no-runtime": {"model": {**_MODEL, "modelName": "odd-r"}},
    "runtime-lua": {"runtime": "lua", "model": _MODEL},
}


def fill_store(store: Path, scratch: Path) -> None:
    """Writes every archive that the cases name."""
    for model in MODELS:
        _archive(model, store, scratch)
    for name, manifest in ODD_MANIFESTS.items():
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        _write_zip(store / f"{name}.mar", {"MAR-INF/MANIFEST.json": text})
    _write_zip(store / "no-manifest.mar", {})
    _write_zip(store / "escape.mar", {"../escaped.txt": "outside"})
    (store / "no-archive.mar").write_text("This is no archive.\n")


def _archive(model: Model, store: Path, scratch: Path) -> None:
    folder = scratch / f"{model.name}-{model.version}"
    folder.mkdir(parents=True)
    config_file = None
    if model.config:
        config_file = folder / "model-config.yaml"
        config_file.write_text(model.config)
    suffix = {"default": ".mar", "tgz": ".tar.gz", "no-archive": ""}[model.archive_format]
    name, colon, function = model.handler.partition(":")
    options = {
        "model-name": model.name,
        "handler": f"{HANDLERS / name}{colon}{function}",
        "version": model.version,
        "runtime": model.runtime,
        "export-path": str(folder),
        "archive-format": model.archive_format,
        **({"config-file": str(config_file)} if config_file else {}),
    }
    # The archiver first empties a folder of the model's name in the temporary one.
    (folder / "build").mkdir()
    subprocess.run(
        [str(ARCHIVER), *(f"--{name}={value}" for name, value in options.items())],
        env={**os.environ, "TMPDIR": str(folder / "build")},
        check=True,
        capture_output=True,
    )
    (folder / f"{model.name}{suffix}").rename(store / (model.file_name or f"{model.name}{suffix}"))


def _write_zip(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.write(HANDLERS / "probe.py", "probe.py")
