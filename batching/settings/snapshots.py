"""Writes and reads snapshots, files from which the next start restores the registered models.

A snapshot is a config.properties with one more key, `model_snapshot`, so TorchServe's own snapshots
can be read, too. Source: TorchServe 0.12 `SnapshotManager`, `FSSnapshotSerializer`.
"""

import datetime
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import javaproperties

from batching.models.entry import ModelEntry
from batching.models.spec import PARAMETERS, ModelSpec
from batching.settings.files import read_properties, write_atomically
from batching.settings.loading import SNAPSHOT
from batching.settings.settings import Settings, SettingsError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedVersion:
    """Holds a snapshot's model version: its record, and the parameters of a `POST /models`."""

    model_name: str
    model_version: str
    is_default: bool
    min_worker: int
    max_worker: int
    parameters: Mapping[str, Any]
    record: Mapping[str, Any]


def server_name(settings: Settings) -> str:
    """Returns a name that is unique among the servers of a folder: management port, or socket."""
    address = settings.management_address
    return str(urlsplit(address).port or re.sub(r"\W+", "-", address).strip("-"))


def newest_snapshot(
    folder: Path,
    is_own: Callable[[Mapping[str, str]], bool] = lambda _: True,
    *,
    report: Callable[[str], None] = log.warning,
) -> Path | None:
    """Returns the snapshot in the folder that was written last; None when there is none.

    Each server has one; TorchServe has left many. `is_own` tells by the properties whether it
    counts: two servers in one folder must not restore each other's models.
    """
    try:
        paths = sorted(folder.glob("*.cfg"), key=lambda path: path.stat().st_mtime_ns)
    except OSError:
        return None
    for path in reversed(paths):
        try:
            read_snapshot(path)
            if is_own(read_properties(path)):
                return path
        except SettingsError as error:
            report(f"snapshot passed over: {error}")
    return None


def write_snapshot(folder: Path, settings: Settings, models: Mapping[str, ModelEntry]) -> Path:
    """Replaces this server's snapshot; after an OSError the last one is still there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{server_name(settings)}-snapshot.cfg"
    saved = saved_models(models)
    record = {
        "name": path.name,
        "modelCount": sum(map(len, saved.values())),
        "created": int(datetime.datetime.now(datetime.UTC).timestamp() * 1000),
        "models": saved,
    }
    properties = {**settings.to_properties(), SNAPSHOT: json.dumps(record, indent=2)}
    write_atomically(path, javaproperties.dumps(properties))
    return path


def saved_models(models: Mapping[str, ModelEntry]) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns model → version → the record that restores it, in TorchServe's words.

    A version that was not loaded keeps its record. One without comes from `load_models`, and its
    name is only a guess: it is left out.
    """
    saved: dict[str, dict[str, dict[str, Any]]] = {}
    for name, entry in sorted(models.items()):
        for version, spec in entry.versions.items():
            if spec.saved_as or not spec.load_error:
                record = dict(spec.saved_as) or _record(spec, version == entry.default_version)
                saved.setdefault(name, {})[version] = record
    return saved


def read_snapshot(path: Path) -> list[SavedVersion]:
    """Returns the versions in the snapshot; raises SettingsError if it cannot be read."""
    properties = read_properties(path)
    try:
        models = json.loads(properties[SNAPSHOT]).get("models") or {}
        return [
            _saved_version(name, version, record)
            for name, versions in models.items()
            for version, record in versions.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path}: its {SNAPSHOT} cannot be understood: {error!r}") from error


def _record(spec: ModelSpec, is_default: bool) -> dict[str, Any]:
    values = {it.word: getattr(spec, it.name) for it in PARAMETERS if it.rest}
    url = urlsplit(spec.model_url)
    return {
        "defaultVersion": is_default,
        # The archive's name in the model store: the last segment of a URL.
        "marName": unquote(url.path.rpartition("/")[2]) if url.scheme else spec.model_url,
        **{word: int(it) if isinstance(it, float) else it for word, it in values.items()},
        "maxWorkers": spec.max_worker,
        "runtimeType": spec.runtime,
        # Not in TorchServe's: a handler that the registration chose is not in the archive, and a
        # remote archive is downloaded again.
        "handler": spec.handler,
        "modelUrl": spec.model_url,
    }


def _saved_version(name: str, version: str, record: Mapping[str, Any]) -> SavedVersion:
    words = {"handler": "handler", **{it.rest: it.word for it in PARAMETERS if it.rest}}
    parameters = {key: record[word] for key, word in words.items() if word in record}
    url = str(record.get("modelUrl") or record["marName"])
    min_worker = int(record.get("minWorkers", 0))
    return SavedVersion(
        model_name=name,
        model_version=version,
        is_default=record.get("defaultVersion") is True,
        min_worker=min_worker,
        max_worker=int(record.get("maxWorkers", min_worker)),
        parameters={"url": url, "model_name": name, **parameters},
        record=record,
    )
