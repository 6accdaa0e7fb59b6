"""Registers, scales and unregisters model versions, for the management API and at start-up."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batching import errors
from batching.errors import DependenciesFailed, InternalError, OutOfResources
from batching.models.entry import check_names
from batching.models.registration import (
    bool_parameter,
    check_parameters,
    check_worker_count,
    ignored_values,
    int_parameter,
    name_of_archive,
    require_served,
    spec_from_registration,
)
from batching.models.spec import DEFAULT_VERSION, INSTALL_TIMEOUT_S, ArchiveInfo, ModelSpec
from batching.settings.snapshots import SavedVersion
from ingress.models.worker_wait import (
    Slot,
    WorkerProgress,
    WorkerWait,
    failed_text,
    failures_by_slot,
)
from ingress.services import Services

log = logging.getLogger(__name__)

PROCESSING = "Processing worker updates..."
IN_PROGRESS = "Workers scaling in progress..."


class Registrar:
    """Changes the registry, and returns TorchServe's texts. Blocks; call from a thread.

    Source: TorchServe 0.12 `ManagementRequestHandler`, `ApiUtils`.
    """

    def __init__(self, services: Services) -> None:
        self._settings = services.settings
        self._registry = services.registry
        self._control = services.control
        self._predictor = services.predictor
        self._loop = services.loop
        self._patience = services.patience
        self._wait = WorkerWait(
            services.registry,
            should_stop=lambda: services.lifecycle.is_draining,
            patience=services.patience,
        )

    def register(self, parameters: Mapping[str, Any]) -> tuple[int, str]:
        """Returns HTTP status and text of `POST /models`; if it raises, nothing is registered."""
        spec = self.create(parameters)
        text = (
            f'Model "{spec.model_name}" Version: {spec.model_version} registered with '
            f"{spec.min_worker} initial workers"
        )
        if spec.min_worker == 0:
            return 200, f"{text}. Use scale workers API to add workers for the model."
        if not bool_parameter(parameters, "synchronous", default=True):
            return 202, PROCESSING
        try:
            progress = self._workers(spec, {}, spec.model_version)
            if progress is WorkerProgress.NONE:
                raise InternalError(failed_text(spec.model_name, spec.model_version))
        except (InternalError, OutOfResources, DependenciesFailed, errors.Draining):
            # A version whose workers cannot load is unregistered. So it is when this server stops:
            # its client registers with another server, which must not refuse that.
            with contextlib.suppress(errors.ServeError):
                self._registry.remove(spec.key, only=spec)
                log.warning("removed model=%s version=%s: not started", *spec.key)
            self._forget(spec.model_name)
            raise
        return (206, IN_PROGRESS) if progress is WorkerProgress.PARTIAL else (200, text)

    def create(self, parameters: Mapping[str, Any], *, at_startup: bool = False) -> ModelSpec:
        """Registers the version; nodes begin to start its workers."""
        url = parameters.get("url")
        if url is None:
            raise errors.BadRequest("Parameter url is required.")
        if not url:
            raise errors.ModelNotFound("empty url")
        check_parameters(parameters)  # a download may take many minutes
        if not self._wait.for_node():
            self._registry.require_writable()  # otherwise no node can report that it runs
            raise errors.Unavailable(
                "No node is running to load models. Start one: ferry node", retry_after_s=5.0
            )
        archive = self._control.inspect_archive(
            str(url), timeout_s=self._patience.archive_s, may_be_downloaded=at_startup
        )
        if not at_startup and archive.manifest is None and not parameters.get("model_name"):
            # As in TorchServe, only startup models are named after their files.
            raise errors.InvalidModel("Model name is not defined.")
        require_served(archive.config)
        spec = spec_from_registration(parameters, archive, self._settings.model_defaults())
        if at_startup and spec.min_worker > 0 and not spec.handler:
            # load_models=all takes the whole folder, even lost+found: with that registered, the
            # server would never be ready.
            raise errors.InvalidModel(
                "It names no handler, and default_service_handler is not set."
            )
        spec = replace(spec, is_loaded_at_startup=at_startup)
        self._registry.create(spec)
        self._remove_unloaded(spec)
        for complaint in ignored_values(archive.config):
            log.warning("ignored setting model=%s version=%s: %s", *spec.key, complaint)
        self._forget(spec.model_name)
        self._wait.until_listed(spec)
        return spec

    def register_unloaded(
        self, parameters: Mapping[str, Any], error: str, saved: SavedVersion | None = None
    ) -> None:
        """Registers a version without workers for an archive that could not be loaded at start.

        It shows the error until its archive is registered, or the version unregistered.
        """
        url, name = str(parameters["url"]), parameters.get("model_name")
        if saved is None and any(
            spec.model_url == url and not spec.load_error and name in (None, spec.model_name)
            for spec in self._registry.specs()
        ):
            return  # its workers show the error
        version = saved.model_version if saved else DEFAULT_VERSION
        archive = ArchiveInfo(url, "", name_of_archive(url), version, "", "python", None, {})
        spec = spec_from_registration(parameters, archive, self._settings.model_defaults())
        record = saved.record if saved else {}
        spec = replace(spec.scaled(0, 0), load_error=error, saved_as=record)
        self._registry.create(spec)
        if saved is not None and saved.is_default:
            self._registry.set_default(*spec.key)
        self._forget(spec.model_name)

    def scale(
        self, model_name: str, model_version: str | None, parameters: Mapping[str, Any]
    ) -> tuple[int, str]:
        """Returns HTTP status and text of `PUT /models/M[/V]`."""
        min_worker = int_parameter(parameters, "min_worker", 1)
        max_worker = int_parameter(parameters, "max_worker", min_worker)
        if max_worker < min_worker:
            raise errors.BadRequest("max_worker cannot be less than min_worker.")
        if min_worker < 0:
            raise errors.BadRequest("min_worker cannot be negative.")
        check_worker_count(min_worker)
        asked = model_version or parameters.get("model_version") or None
        known = self.resolve(model_name, asked)
        if known.load_error and min_worker > 0:
            why = known.load_error.rstrip(".")
            raise errors.InvalidModel(f"{why}. It was not loaded: register it again.")
        key = known.key
        failures_before = failures_by_slot(self._registry.workers(key))
        spec = self._registry.scale(key, min_worker, max_worker)
        self._forget(model_name)
        self._wait.until_listed(spec)
        if not bool_parameter(parameters, "synchronous", default=False):
            return 202, PROCESSING
        progress = self._workers(spec, failures_before, asked or "null")
        if progress is not WorkerProgress.DONE:
            return 206, IN_PROGRESS
        version = f", version: {asked}" if asked else ""
        return 200, f"Workers scaled to {min_worker} for model: {model_name}{version}"

    def set_default(self, model_name: str, model_version: str) -> str:
        """Returns the status text of `PUT /models/M/V/set-default`."""
        check_names(model_name)
        self._registry.set_default(model_name, model_version)
        self._forget(model_name)
        return f'Default version successfully updated for model "{model_name}" to "{model_version}"'

    def unregister(self, model_name: str, model_version: str | None) -> str:
        """Returns the status text of `DELETE /models/M[/V]`, once the workers are gone."""
        try:
            key = self.resolve(model_name, model_version).key
            self._registry.remove(key)
            self._forget(model_name)
            self._wait.until_gone(key, self._settings.unregister_model_timeout_s)
        except errors.RecordUnreadable:
            if model_version is not None:
                raise  # the model may have other versions, whose workers serve
            self._registry.remove_unreadable(model_name)  # without a wait for its workers
            self._forget(model_name)
        return f'Model "{model_name}" unregistered'

    def resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        check_names(model_name, model_version)
        return self._registry.resolve(model_name, model_version)

    def _remove_unloaded(self, spec: ModelSpec) -> None:
        """Unregisters unloaded versions of this archive, whose name or version was a guess."""
        for other in self._registry.specs():
            names = (spec.model_name, name_of_archive(other.model_url))
            is_same = other.model_url == spec.model_url and other.model_name in names
            if other.load_error and is_same and other.key != spec.key:
                with contextlib.suppress(errors.NotFound):
                    self._registry.remove(other.key, only=other)
                self._forget(other.model_name)

    def _workers(
        self, spec: ModelSpec, failures_before: Mapping[Slot, int], version_text: str
    ) -> WorkerProgress:
        is_installed = self._settings.install_py_dep_per_model and spec.requirements_file
        return self._wait.for_workers(
            spec,
            failures_before=failures_before,
            version_text=version_text,
            install_patience_s=INSTALL_TIMEOUT_S if is_installed else 0.0,
        )

    def _forget(self, model_name: str) -> None:
        self._loop.call_soon_threadsafe(self._predictor.forget, model_name)
