"""Registers the models of `load_models` and of a snapshot at the start, and saves snapshots.

Source: TorchServe 0.12 `ModelServer.initModelStore`, `SnapshotManager.restore`.
"""

import contextlib
import itertools
import logging
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from batching import errors
from batching.errors import StoreUnavailable
from batching.models.spec import NAME_PATTERN, ModelSpec
from batching.process.retries import Reminder
from batching.settings.files import read_properties
from batching.settings.settings import Settings, SettingsError
from batching.settings.snapshots import SavedVersion, read_snapshot, saved_models, write_snapshot
from batching.store.registry.registry import Registry
from ingress.models.registrar import Registrar
from ingress.services import Services

log = logging.getLogger(__name__)

_RETRY_S = 0.5
# How long the last snapshot may take.
_CLOSE_S = 0.5
# Only a bound: changes, `close` and the end of the connection wake the thread that saves.
_LISTEN_S = 60.0
_ARCHIVE_SUFFIXES = (".mar", ".model", ".tar.gz")

T = TypeVar("T")


class StartupLoader:
    """Registers the models of `load_models` and of a snapshot. Blocks; call from a thread.

    A server that restarts by itself registers each model once in the life of a registry, and so
    brings none back that was unregistered. An operator's `ferry up` (`is_awaited`) registers all.
    """

    def __init__(self, services: Services, registrar: Registrar, *, is_awaited: bool) -> None:
        self._services = services
        self._registry = services.registry
        self._registrar = registrar
        self._is_awaited = is_awaited
        self._failures: list[dict[str, str]] = []

    def load(self) -> list[dict[str, str]]:
        """Registers each startup model; returns `{"model", "error"}` for each that failed.

        The snapshot comes first, as it is newer than `load_models`. If the configuration has
        changed since, `load_models` comes first, and the snapshot can only add to it. Workers load
        in the background: a registered model need not be ready.
        """
        path = self._services.settings.snapshot_file
        with contextlib.suppress(errors.Draining):
            steps = [self._load_configured]
            # A snapshot is a complete registry. Merged into another, it would undo later changes,
            # of the default version for example.
            if path is not None and (known := self._persist(str(path), self._registry.snapshot)):
                log.warning("not restored snapshot=%s: Redis has models=%d", path, len(known))
            elif path is not None and self._is_asked_for(str(path)):
                place = 1 if self._has_new_configuration(path) else 0
                steps.insert(place, partial(self._restore_snapshot, path))
            for step in steps:
                step()
        return self._failures

    def _load_configured(self) -> None:
        settings = self._services.settings
        models = settings.model_defaults().model_settings

        def make_default(spec: ModelSpec) -> None:
            configured = models.get(spec.model_name, {}).get(spec.model_version, {})
            if configured.get("defaultVersion") is True:
                self._registrar.set_default(*spec.key)

        for parameters in startup_parameters(settings):
            url, name = str(parameters["url"]), parameters.get("model_name")
            entry = f"{name}={url}" if name else url
            if not self._is_asked_for(entry):
                log.info("left out model=%s: it was loaded at an earlier start", name or url)
            elif self._register(str(name or url), parameters, make_default):
                self._persist(entry, partial(self._registry.note_started, entry))

    def _has_new_configuration(self, path: Path) -> bool:
        with contextlib.suppress(SettingsError):  # `_restore_snapshot` reports it
            before, now = read_properties(path), self._services.settings.to_properties()
            return any(now.get(key, "") != before.get(key, "") for key in ("load_models", "models"))
        return False

    def _restore_snapshot(self, path: Path) -> None:
        try:
            saved = read_snapshot(path)
        except SettingsError as error:
            log.error("not restored: %s", error)
            self._failures.append({"snapshot": str(path), "error": str(error)})
            return
        log.info("restoring snapshot=%s versions=%d", path, len(saved))
        for version in saved:
            name = f"{version.model_name} {version.model_version}"
            self._register(name, version.parameters, partial(self._complete, version), version)
        self._persist(str(path), lambda: self._registry.note_started(str(path)))

    def _complete(self, saved: SavedVersion, spec: ModelSpec) -> None:
        """Gives a restored version the workers and the default that were saved."""
        if spec.model_version != saved.model_version:
            log.warning(
                "model=%s: its archive has version %s now", spec.model_name, spec.model_version
            )
        # model-config.yaml wins over the parameters, but not over the operator who scaled last.
        if (spec.min_worker, spec.max_worker) != (saved.min_worker, saved.max_worker):
            self._registry.scale(spec.key, saved.min_worker, saved.max_worker)
        if saved.is_default:
            self._registrar.set_default(*spec.key)

    def _is_asked_for(self, entry: str) -> bool:
        was_started = partial(self._registry.was_started, entry)
        return self._is_awaited or not self._persist(entry, was_started)

    def _register(
        self,
        model: str,
        parameters: Mapping[str, Any],
        complete: Callable[[ModelSpec], None],
        saved: SavedVersion | None = None,
    ) -> bool:
        """Returns whether the model is registered, now or before.

        If not, a version without workers is registered instead, and shows why.
        """
        try:
            spec = self._persist(model, lambda: self._registrar.create(parameters, at_startup=True))
            self._persist(model, lambda: complete(spec))
            log.info("registered model=%s version=%s", *spec.key)
        except errors.Conflict as error:
            # Another ingress was faster, the snapshot has the model, or Redis remembers it.
            log.info("kept model=%s: %s", model, error.message)
        except errors.Draining:
            raise
        except errors.ServeError as error:
            reason = ". ".join(filter(None, (error.message, error.operators_text)))
            log.error("not loaded model=%s: %s", model, reason)
            self._failures.append({"model": model, "error": reason})
            register = partial(self._registrar.register_unloaded, parameters, error.message, saved)
            # Its name may not be one for a model, and Redis may remember the version.
            with contextlib.suppress(errors.BadRequest, errors.Conflict, errors.InvalidModel):
                self._persist(model, register)
            return False
        return True

    def _persist(self, model: str, attempt: Callable[[], T]) -> T:
        """Repeats the attempt while its obstacle may pass by itself.

        Otherwise the server would be ready with nothing to serve, while its nodes wait for a disk.
        """
        say_at_s = 0.0
        while not self._services.lifecycle.is_draining:
            try:
                return attempt()
            except errors.Unavailable as error:
                if time.monotonic() >= say_at_s:
                    say_at_s = time.monotonic() + self._services.patience.remind_s
                    log.warning("not yet loaded model=%s: %s", model, error.message)
                time.sleep(_RETRY_S)
        raise errors.Draining("The server is shutting down.")


def startup_parameters(settings: Settings) -> list[dict[str, Any]]:
    """Returns the registration parameters of each model that `load_models` names.

    Unlike TorchServe, 0 default workers mean one here, not one per CPU core.
    """
    workers = settings.default_workers_per_model or 1
    named = settings.load_models.strip()
    if named.lower() == "all":
        return [{"url": name, "initial_workers": workers} for name in _archives_of(settings)]
    models: list[dict[str, Any]] = []
    for entry in filter(None, map(str.strip, named.split(","))):
        name, equals, url = (part.strip() for part in entry.partition("="))
        # A URL may contain an equals sign, too, but only after characters that no name has.
        if equals and NAME_PATTERN.fullmatch(name):
            models.append({"url": url, "initial_workers": workers, "model_name": name})
        else:
            models.append({"url": entry, "initial_workers": workers})
    return models


def _archives_of(settings: Settings) -> Iterator[str]:
    try:
        if settings.model_store is None:
            raise NotADirectoryError("it is not set")
        paths = sorted(settings.model_store.iterdir())
    except OSError as error:
        # The server starts anyway, as it does when an archive cannot be read.
        log.error("load_models=all cannot read the model_store: %s", error)
        return
    for path in paths:
        # Hidden entries are no models: downloads, and Kubernetes' `..data`, the target of links.
        if path.name.startswith("."):
            continue
        if path.name.endswith(_ARCHIVE_SUFFIXES) or _may_be_model(path, settings):
            yield path.name


def _may_be_model(path: Path, settings: Settings) -> bool:
    """Returns whether this is a model's folder, and not one of logs, or lost+found."""
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return False
    except OSError:
        return True  # a link to a disk that is away: the registration reports it
    manifests = (path.glob(f"{wrapper}MAR-INF/MANIFEST.json") for wrapper in ("", "*/"))
    if settings.default_service_handler or any(itertools.chain(*manifests)):
        return True
    log.info("left out folder=%s: it has no MAR-INF/MANIFEST.json", path)
    return False


class SnapshotWriter:
    """Saves the registered models in a file at start, after each change, and at the end.

    This is for a Redis that ends with the server; any other keeps the registry itself. Watches the
    registry in a thread of its own, from `start` to `close`.

    A snapshot that could not be written is tried again after `save_again_s`.
    """

    def __init__(
        self, registry: Registry, settings: Settings, folder: Path, *, save_again_s: float = 30.0
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._folder = folder
        self._save_again_s = save_again_s
        self._saved: Mapping[str, Any] | None = None
        self._has_failed = False
        self._reminder = Reminder()
        self._is_over = threading.Event()
        # A daemon: a Redis that does not answer must not keep a stopped server alive.
        self._thread = threading.Thread(target=self._watch, name="snapshots", daemon=True)

    def start(self, *, is_whole: bool = True) -> None:
        """Saves the registry now and after each change. Blocks.

        If the last snapshot was not completely restored (`is_whole`), it stays until the registry
        changes: a missing archive may be back at the next start.
        """
        if not is_whole:
            with contextlib.suppress(StoreUnavailable):
                self._saved = saved_models(self._registry.snapshot())
        self._save()
        self._thread.start()

    def close(self) -> None:
        """Saves the registry for the last time, if `start` was called. Blocks."""
        self._is_over.set()
        if self._thread.is_alive():
            with contextlib.suppress(StoreUnavailable):
                self._registry.announce("")
            self._thread.join(_CLOSE_S)
            self._save()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._registry.changes() as wait:
                    while not self._is_over.is_set():
                        self._save()
                        # Workers' states come over the same channel and change nothing here.
                        wait(self._save_again_s if self._has_failed else _LISTEN_S)
            except StoreUnavailable:
                self._is_over.wait(_RETRY_S)

    def _save(self) -> None:
        try:
            models = self._registry.snapshot()
            state = saved_models(models)
            # The nodes will fill an emptied Redis again: no operator has emptied the registry.
            if state == self._saved or (not state and self._registry.is_lost()):
                return
            path = write_snapshot(self._folder, self._settings, models)
            self._saved, self._has_failed = state, False
            self._reminder = Reminder()
            log.info("saved snapshot=%s", path)
        except (StoreUnavailable, OSError) as error:
            self._has_failed = True
            reason = str(error.strerror if isinstance(error, OSError) else error)
            # Workers report often, and each report leads to a try.
            if self._reminder.is_due(reason):
                template = "snapshot not saved folder=%s: %s (snapshot_dir chooses another folder)"
                log.error(template, self._folder, reason)
