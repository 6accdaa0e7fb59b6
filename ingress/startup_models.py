"""Registers the models of `load_models` and of a snapshot, once a node is there to load them.

Source: TorchServe 0.12 `ModelServer.initModelStore`, `SnapshotManager.restore`; contract 4.4, 4.6.
"""

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from batching.errors import Conflict, ServeError, StoreUnavailable
from batching.model_spec import NAME_PATTERN, ModelSpec
from batching.settings import Settings, SettingsError
from batching.snapshots import SavedVersion, read_snapshot
from ingress.registrar import Registrar
from ingress.services import Services
from ingress.worker_wait import wait_for_node

log = logging.getLogger(__name__)

NODE_TIMEOUT_S = 120.0
_RETRY_S = 0.5
_ARCHIVE_SUFFIXES = (".mar", ".model", ".tar.gz")

Failure = dict[str, str]


def load_models(services: Services, registrar: Registrar) -> list[Failure]:
    """Each startup model is registered; `{"model", "error"}` for each that is not. Blocks.

    What a snapshot holds comes first, so that `load_models` can only add to it. Workers load in the
    background: a registered model is not a ready one.
    """
    failures: list[Failure] = []
    for model, register in _registrations(services, registrar, failures):
        if services.lifecycle.is_draining:
            break
        try:
            _wait_for_node(services)
            spec = register()
            log.info("registered model=%s version=%s", *spec.key)
        except Conflict as error:
            # Another ingress was faster, a snapshot has it, or Redis remembers it from before.
            log.info("kept model=%s: %s", model, error.message)
        except ServeError as error:
            log.error("not loaded model=%s: %s", model, error.message)
            failures.append({"model": model, "error": error.message})
    return failures


def startup_parameters(settings: Settings) -> list[dict[str, Any]]:
    """Registration parameters for each model that `load_models` names.

    Unlike TorchServe, 0 default workers mean one here, not one per CPU core.
    """
    workers = settings.default_workers_per_model or 1
    text = settings.load_models.strip()
    if text.lower() == "all":
        entries = [("", name) for name in _archives_of(settings.model_store)]
    else:
        entries = [_named_archive(entry) for entry in text.split(",") if entry.strip()]
    return [
        {"url": url, "initial_workers": workers, **({"model_name": name} if name else {})}
        for name, url in entries
    ]


def _registrations(
    services: Services, registrar: Registrar, failures: list[Failure]
) -> Iterator[tuple[str, Callable[[], ModelSpec]]]:
    """Each model's name for a log, and what registers it."""
    for saved in _saved_versions(services.settings, failures):
        name = f"{saved.model_name} {saved.model_version}"
        yield name, partial(_restore, services, registrar, saved)
    for parameters in startup_parameters(services.settings):
        name = str(parameters.get("model_name") or parameters["url"])
        yield name, partial(_load, services, registrar, parameters)


def _saved_versions(settings: Settings, failures: list[Failure]) -> list[SavedVersion]:
    if settings.snapshot_file is None:
        return []
    try:
        saved = read_snapshot(settings.snapshot_file)
    except SettingsError as error:
        log.error("not restored: %s", error)
        failures.append({"snapshot": str(settings.snapshot_file), "error": str(error)})
        return []
    log.info("restoring snapshot=%s versions=%d", settings.snapshot_file, len(saved))
    return saved


def _restore(services: Services, registrar: Registrar, saved: SavedVersion) -> ModelSpec:
    spec = registrar.create(saved.parameters, at_startup=True)
    if spec.model_version != saved.model_version:
        log.warning("model=%s: its archive has version %s now", spec.model_name, spec.model_version)
    # A model-config.yaml wins over parameters, but not over what an operator has scaled since.
    if (spec.min_worker, spec.max_worker) != (saved.min_worker, saved.max_worker):
        services.registry.scale(spec.key, saved.min_worker, saved.max_worker)
    if saved.is_default:
        registrar.set_default(*spec.key)
    return spec


def _load(services: Services, registrar: Registrar, parameters: dict[str, Any]) -> ModelSpec:
    spec = registrar.create(parameters, at_startup=True)
    models = services.settings.model_defaults().model_settings
    configured = models.get(spec.model_name, {}).get(spec.model_version, {})
    if configured.get("defaultVersion") is True:
        registrar.set_default(*spec.key)
    return spec


def _named_archive(entry: str) -> tuple[str, str]:
    name, equals, url = entry.strip().partition("=")
    # A URL may hold an equals sign, too, but never before a character that names cannot have.
    if equals and NAME_PATTERN.fullmatch(name.strip()):
        return name.strip(), url.strip()
    return "", entry.strip()


def _archives_of(model_store: Path | None) -> Iterator[str]:
    if model_store is None or not model_store.is_dir():
        log.error("load_models=all needs a model_store that is a folder")
        return
    for path in sorted(model_store.iterdir()):
        is_archive = path.is_dir() or path.name.endswith(_ARCHIVE_SUFFIXES)
        if is_archive and not path.name.startswith("."):
            yield path.name


def _wait_for_node(services: Services) -> None:
    # Redis starts at the same moment, too, in containers; without a node, `create` says what is
    # missing.
    def should_stop() -> bool:
        return services.lifecycle.is_draining

    deadline_s = time.monotonic() + NODE_TIMEOUT_S
    while (left_s := deadline_s - time.monotonic()) > 0 and not should_stop():
        try:
            wait_for_node(services.registry, should_stop, timeout_s=left_s)
        except StoreUnavailable:
            time.sleep(_RETRY_S)
        else:
            return
