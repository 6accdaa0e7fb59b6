"""Reads what is to be served: a Python file, a file without code, an archive, or `hf:NAME`."""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batching.models.registration import name_of_archive
from batching.models.spec import DEFAULT_VERSION, NAME_PATTERN, VERSION_PATTERN
from ferry.serving.python_file import TargetError, read_python_file, shown, sources_of

HUGGING_FACE = "hf:"
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
        digest = hashlib.sha256(repr((self.label, sorted(self.settings.items()))).encode())
        for place, path in sorted(self.sources.items()):
            if path.suffix == ".py":
                digest.update(place.encode() + path.read_bytes())
            else:  # may be large
                found = path.stat()
                digest.update(f"{place} {found.st_mtime_ns} {found.st_size}".encode())
        return digest.hexdigest()

    @property
    def is_without_code(self) -> bool:
        return self.path is not None and self.path.suffix in WITHOUT_CODE

    @property
    def handler(self) -> str:
        return "tensor_model" if self.is_without_code else "python_model"

    @property
    def text(self) -> str:
        """Returns what a manifest says of it, beside the sources."""
        return self._text(self.path.name if self.path else "")

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
            "target": self._text(str(self.path)),
            "configFile": CONFIG_FILE,
        }
        manifest = folder / MANIFEST_NAME
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"runtime": "python", "model": model}), encoding="utf-8")
        (folder / CONFIG_FILE).write_text(self.config(settings), encoding="utf-8")
        for place, path in self.sources.items():
            if path.suffix == ".py":
                copy = folder / "sources" / place
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)

    def _text(self, path: str) -> str:
        if self.path is None:
            return f"{HUGGING_FACE}{self.label}"
        return f"{path}:{self.label}" if self.label else path


@dataclass(frozen=True, slots=True)
class RunFlags:
    """Says how many workers each model has, and where; 0 and "": as the models say."""

    workers: int = 0
    device: str = ""

    def spec_fields(self) -> dict[str, Any]:
        """Returns what they change in a registered version.

        Raises:
            TargetError: there is no such device.
        """
        workers = {"min_worker": self.workers, "max_worker": self.workers} if self.workers else {}
        kind, colon, index = self.device.partition(":")
        if not self.device:
            return workers
        if self.device in ("cpu", "mps"):  # to a node, Apple's GPU is none
            return {**workers, "device_type": "cpu"}
        if kind == "cuda" and (index.isdecimal() or not colon):
            return {**workers, "device_type": "gpu", "device_ids": (int(index),) if index else ()}
        raise TargetError(f"--device {self.device}: write cpu, cuda, cuda:1 or mps")

    def settings(self) -> dict[str, Any]:
        """Returns what they add to a model's configuration, which its `load` goes by."""
        return {"device": self.device} if self.device == "mps" else {}


def read_targets(texts: Sequence[str]) -> list[ServedTarget]:
    """Returns the models of all these targets.

    Raises:
        TargetError: one cannot be served, or two have one name.
    """
    found = [one for text in texts for one in read_target(text)]
    [(name, count)] = Counter(one.name for one in found).most_common(1)
    if count > 1:
        raise TargetError(
            f'{count} models are called {name}: give one of them another name, with name = "..."'
        )
    return found


def read_target(text: str) -> list[ServedTarget]:
    """Returns the models of one target.

    Raises:
        TargetError: there is no such target, or it serves nothing; the text says why.
    """
    if text.startswith(HUGGING_FACE):
        return [_hugging_face(text.removeprefix(HUGGING_FACE))]
    file, _, label = text.partition(".py:")
    path = Path(f"{file}.py" if label else text).absolute()
    if not path.exists():
        raise TargetError(f"there is no file {shown(path)}")
    if path.suffix == ".py":
        sources = sources_of(path)
        return [
            _checked(ServedTarget(one.name, one.version, path, one.label, one.settings, sources))
            for one in read_python_file(path, label)
        ]
    if path.suffix in WITHOUT_CODE:
        # Weights of an ONNX file may lie beside it.
        files = [path, path.with_name(f"{path.name}.data")]
        sources = {one.name: one for one in files if one.is_file()}
        return [ServedTarget(_as_name(path.stem), DEFAULT_VERSION, path, sources=sources)]
    if path.is_dir() or path.name.endswith((".mar", ".tar.gz", ".tgz")):
        return [ServedTarget(name_of_archive(path.name), "", path, is_archive=True)]
    raise TargetError(
        f"{shown(path)} is no target: FILE.py, FILE.py:NAME, .onnx, .pt2, .pt (TorchScript), .mar, "
        "a folder of an archive, or hf:NAME"
    )


def _hugging_face(name: str) -> ServedTarget:
    if not name:
        raise TargetError("hf: needs a name behind it, as in hf:sentiment-analysis")
    path = Path(name)
    label = str(path.absolute()) if path.is_dir() else name
    return ServedTarget(_as_name(path.name), DEFAULT_VERSION, None, label)


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text) or "model"


def _checked(target: ServedTarget) -> ServedTarget:
    assert target.path is not None
    if not NAME_PATTERN.fullmatch(target.name):
        raise TargetError(
            f"{shown(target.path)}: {target.name!r} can be no model's name: choose one with "
            "name = \"...\", of letters, digits, '.', '_' and '-', beginning with a letter, digit "
            "or '_'"
        )
    if not VERSION_PATTERN.fullmatch(target.version):
        text = f"{target.version!r} can be no version: write it like 1.0"
        raise TargetError(f"{shown(target.path)}: {text}")
    return target
