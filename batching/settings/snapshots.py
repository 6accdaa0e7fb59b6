"""Writes and reads snapshots: files that bring the registered models back at the next start.

A snapshot is a config.properties with one more key, `model_snapshot`, so TorchServe's own snapshots
can be read, too. Source: TorchServe 0.12 `SnapshotManager`, `FSSnapshotSerializer`.
"""

import contextlib
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
from batching.settings.setting import SettingsError
from batching.settings.torchserve_keys import SNAPSHOT

STARTUP, CHANGE, SHUTDOWN = "startup", "snapshot", "shutdown"

# TorchServe keeps all snapshots; an autoscaler would fill the disk.
MAX_FILES = 100

_FILE_NAME = re.compile(r"[0-9]{17}-(startup|snapshot|shutdown)\.cfg")

_ADDRESS = re.compile(rb"^management_address=.*", re.MULTILINE)
_HEAD_BYTES = 64 * 1024  # the settings come before the models, which may be many

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedVersion:
    """One model version as a snapshot has it: its record, and the `POST /models` in it."""

    model_name: str
    model_version: str
    is_default: bool
    min_worker: int
    max_worker: int
    parameters: Mapping[str, Any]
    record: Mapping[str, Any]


def newest_snapshot(
    folder: Path,
    is_own: Callable[[Mapping[str, str]], bool] = lambda _: True,
    *,
    report: Callable[[str], None] = log.warning,
) -> Path | None:
    """Returns the newest whole snapshot in the folder, by name; None when there is none.

    A crashed host may leave one that is empty or cut short. The one before it is better than none.

    Args:
        folder: where to look.
        is_own: whether a snapshot with these properties counts. Two servers in one folder must not
            restore each other's models.
        report: told once which unreadable snapshot was passed over, why, and how many before it.
    """
    newest = None
    reasons = []
    for path in _newest_first(folder):
        try:
            properties = read_properties(path)
            _versions_in(path, properties)
        except SettingsError as error:
            reasons.append(error)
            continue
        if is_own(properties):
            newest = path
            break
    if reasons:
        others = f"; and {len(reasons) - 1} before it" if len(reasons) > 1 else ""
        report(f"snapshot passed over: {reasons[0]}{others}")
    return newest


def write_snapshot(
    folder: Path,
    kind: str,
    properties: Mapping[str, str],
    models: Mapping[str, ModelEntry],
    max_files: int = MAX_FILES,
) -> Path:
    """Writes a whole snapshot and deletes the oldest ones beyond `max_files`; returns its path.

    The newest one of each other server in this folder stays, as that may change far less often.

    Args:
        folder: made if need be.
        kind: STARTUP, CHANGE or SHUTDOWN.
        properties: the configuration that goes with the models.
        models: the whole registry.
        max_files: how many snapshots are kept.

    Raises:
        OSError: the snapshot cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    path = folder / f"{_stamp(now, folder)}-{kind}.cfg"
    saved = saved_models(models)
    record = {
        "name": path.name,
        "modelCount": sum(map(len, saved.values())),
        "created": int(now.timestamp() * 1000),
        "models": saved,
    }
    text = javaproperties.dumps({**properties, SNAPSHOT: json.dumps(record, indent=2)})
    write_atomically(path, text)
    _remove_oldest(folder, max_files)
    return path


def saved_models(models: Mapping[str, ModelEntry]) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns model → version → the record that restores it, in TorchServe's words.

    A version that was not loaded keeps the record it came from. Without one it is left out: it is
    in `load_models`, and how it is called is only a guess.
    """
    saved = {
        name: {
            version: dict(spec.saved_as)
            or _saved(spec, is_default=version == entry.default_version)
            for version, spec in entry.versions.items()
            if spec.saved_as or not spec.load_error
        }
        for name, entry in sorted(models.items())
    }
    return {name: records for name, records in saved.items() if records}


def read_snapshot(path: Path) -> list[SavedVersion]:
    """Returns the versions that the snapshot holds.

    Raises:
        SettingsError: the file cannot be read, or is not a snapshot.
    """
    return _versions_in(path, read_properties(path))


def _versions_in(path: Path, properties: Mapping[str, str]) -> list[SavedVersion]:
    try:
        models = json.loads(properties[SNAPSHOT]).get("models") or {}
        return [
            _restored(name, version, record)
            for name, versions in models.items()
            for version, record in versions.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path}: its {SNAPSHOT} cannot be understood: {error!r}") from error


def _saved(spec: ModelSpec, *, is_default: bool) -> dict[str, Any]:
    values = {it.word: getattr(spec, it.name) for it in PARAMETERS if it.rest}
    url = urlsplit(spec.model_url)
    return {
        "defaultVersion": is_default,
        # The archive's name in the model store: the last segment of a URL.
        "marName": unquote(url.path.rpartition("/")[2]) if url.scheme else spec.model_url,
        **{word: int(it) if isinstance(it, float) else it for word, it in values.items()},
        "maxWorkers": spec.max_worker,
        "runtimeType": spec.runtime,
        # Beyond TorchServe: a handler that the registration chose is not in the archive, and an
        # archive that was downloaded is downloaded again.
        "handler": spec.handler,
        "modelUrl": spec.model_url,
    }


def _restored(name: str, version: str, record: Mapping[str, Any]) -> SavedVersion:
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


def _stamp(now: datetime.datetime, folder: Path) -> str:
    """Returns this moment, or the one after the newest snapshot's.

    The last one written must be the newest by name, although clocks are set back and TorchServe
    uses local time.
    """
    stamp = now.strftime("%Y%m%d%H%M%S") + f"{now.microsecond // 1000:03d}"
    newest = _newest_first(folder)[:1]
    taken = int(newest[0].name[: len(stamp)]) if newest else 0
    return f"{max(int(stamp), taken + 1):017d}"


def _remove_oldest(folder: Path, max_files: int) -> None:
    paths = _newest_first(folder)
    old = paths[max_files:]
    servers = {_server_of(path) for path in paths[:max_files]} if old else set()
    for path in old:
        if (server := _server_of(path)) in servers:
            path.unlink(missing_ok=True)
        servers.add(server)


def _server_of(path: Path) -> bytes:
    """Returns the line with the management address, which tells servers in one folder apart."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        if match := _ADDRESS.search(stream.read(_HEAD_BYTES)):
            return match[0]
    return b""


def _newest_first(folder: Path) -> list[Path]:
    try:
        paths = [path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(paths, key=lambda path: path.name, reverse=True)
