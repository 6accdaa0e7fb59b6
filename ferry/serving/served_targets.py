"""Reads what is to be served: a Python file, a file without code, an archive, or `hf:NAME`."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batching.models.registration import name_of_archive
from batching.models.spec import DEFAULT_VERSION
from ferry.serving.python_file import TargetError, read_python_file, shown, sources_of
from workers.python_models.targets import HUGGING_FACE, SOURCES, Target

WITHOUT_CODE = frozenset({".onnx", ".pt", ".pts", ".pt2"})
# What `ferry serve` and `ferry archive` give a model in Python that says nothing itself.
DEFAULTS: Mapping[str, Any] = {
    "batchSize": 32,
    "maxBatchDelay": 10,
    "batchPolicy": "adaptive",
    "minWorkers": 1,
    "maxWorkers": 1,
}
CONFIG_FILE = "model-config.yaml"
MANIFEST_NAME = "MAR-INF/MANIFEST.json"


@dataclass(frozen=True, slots=True)
class ServedTarget:
    """One model to serve.

    Attributes:
        path: None for `hf:NAME`.
        label: what a Python file calls it; `NAME` of `hf:NAME`.
        settings: in the words of archives.
        sources: files to watch and to keep a copy of, by their places in an archive.
        is_archive: whether it is served as it is; its manifest may say another name.
    """

    name: str
    version: str
    path: Path | None
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Path] = field(default_factory=dict)
    is_archive: bool = False

    def fingerprint(self) -> str:
        """Returns a text that differs once the model, or a file of it, is another."""
        files = [(place, path.stat()) for place, path in sorted(self.sources.items())]
        saved = [(place, status.st_mtime_ns, status.st_size) for place, status in files]
        return repr((self.label, sorted(self.settings.items()), saved))

    @property
    def is_without_code(self) -> bool:
        return self.path is not None and self.path.suffix in WITHOUT_CODE

    @property
    def handler(self) -> str:
        return "tensor_model" if self.is_without_code else "python_model"

    def text(self, file: str) -> str:
        """Returns what a manifest says of it, where its file is called so."""
        if self.path is None:
            return f"{HUGGING_FACE}{self.label}"
        return f"{file}:{self.label}" if self.label else file

    def config(self, more: Mapping[str, Any] | None = None) -> str:
        settings = {**DEFAULTS, **self.settings, **(more or {})}
        settings["maxWorkers"] = max(settings["minWorkers"], settings["maxWorkers"])
        return "".join(f"{word}: {json.dumps(value)}\n" for word, value in settings.items())

    def write_folder(self, folder: Path, version: str, settings: Mapping[str, Any]) -> None:
        """Writes an archive in which the target stays where it is.

        Of its code there is a copy: a worker that starts later runs what was registered.
        """
        model = {
            "modelName": self.name,
            "modelVersion": version,
            "handler": self.handler,
            "target": self.text(str(self.path)),
            "configFile": CONFIG_FILE,
        }
        manifest = folder / MANIFEST_NAME
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"runtime": "python", "model": model}), encoding="utf-8")
        (folder / CONFIG_FILE).write_text(self.config(settings), encoding="utf-8")
        for place, path in self.sources.items():
            if path.suffix == ".py":
                copy = folder / SOURCES / place
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def spec_fields(workers: int, device: str) -> dict[str, Any]:
    """Returns what these flags change in a registered version; 0 and "": nothing.

    Raises:
        TargetError: there is no such device.
    """
    fields: dict[str, Any] = {"min_worker": workers, "max_worker": workers} if workers else {}
    kind, colon, index = device.partition(":")
    if device in ("cpu", "mps"):  # to a node, Apple's GPU is none
        fields["device_type"] = "cpu"
    elif kind == "cuda" and (index.isdecimal() or not colon):
        fields |= {"device_type": "gpu", "device_ids": (int(index),) if index else ()}
    elif device:
        raise TargetError(f"--device {device}: write cpu, cuda, cuda:1 or mps")
    return fields


def read_targets(texts: Sequence[str]) -> list[ServedTarget]:
    """Returns the models of all these targets.

    Raises:
        TargetError: one cannot be served, or two have one name.
    """
    targets = [target for text in texts for target in read_target(text)]
    [(name, count)] = Counter(target.name for target in targets).most_common(1)
    if count > 1:
        raise TargetError(
            f'{count} models are called {name}: give one of them another name, with name = "..."'
        )
    return targets


def read_target(text: str) -> list[ServedTarget]:
    """Returns the models of one target.

    Raises:
        TargetError: there is no such target, or it serves nothing; the text says why.
    """
    target = Target.of(text, Path.cwd())
    path = target.path
    if path is None:
        if not target.name:
            raise TargetError("hf: needs a name behind it, as in hf:sentiment-analysis")
        folder = Path(target.name)
        label = str(folder.absolute()) if folder.is_dir() else target.name
        return [ServedTarget(_as_name(folder.name), DEFAULT_VERSION, None, label)]
    if not path.exists():
        raise TargetError(f"there is no file {shown(path)}")
    if path.suffix == ".py":
        sources = sources_of(path)
        return [
            ServedTarget(one.name, one.version, path, one.label, one.settings, sources)
            for one in read_python_file(path, target.name)
        ]
    if path.suffix in WITHOUT_CODE:
        # Weights of an ONNX file may lie beside it.
        files = [path, path.with_name(f"{path.name}.data")]
        sources = {file.name: file for file in files if file.is_file()}
        return [ServedTarget(_as_name(path.stem), DEFAULT_VERSION, path, sources=sources)]
    if path.is_dir() or path.name.endswith((".mar", ".tar.gz", ".tgz")):
        return [ServedTarget(name_of_archive(path.name), "", path, is_archive=True)]
    raise TargetError(
        f"{shown(path)} is no target: FILE.py, FILE.py:NAME, .onnx, .pt2, .pt (TorchScript), .mar, "
        "a folder of an archive, or hf:NAME"
    )


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text) or "model"
