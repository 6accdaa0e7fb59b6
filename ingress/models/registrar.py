"""Registers, scales and unregisters model versions, for the management API and at start-up."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from batching import errors
from batching.errors import DependenciesFailed, InternalError, OutOfResources
from batching.models.entry import check_names, still_registered
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
from batching.models.spec import (
    DEFAULT_VERSION,
    INSTALL_TIMEOUT_S,
    ArchiveInfo,
    ModelSpec,
    VersionKey,
)
from batching.models.statuses import WorkerState, WorkerStatus
from batching.settings.snapshots import SavedVersion
from batching.store.registry.registry import Registry
from ingress.services import Services, TimeLimits

log = logging.getLogger(__name__)

PROCESSING = "Processing worker updates..."
IN_PROGRESS = "Workers scaling in progress..."

# A wait is cut into slices, so that a stop of the server or a missed notice is seen in time.
_SLICE_S = 1.0
_RETRY_S = 0.2

_MOST_CAUSES = 3  # in an answer; as a rule all workers fail in the same way

_LOOK_FOR_NODE_S = 0.25  # a new node is not announced

Slot = tuple[str, int]


class WorkerProgress(Enum):
    DONE = "done"
    PARTIAL = "partial"
    NONE = "none"


def failed_text(model_name: str, version_text: str) -> str:
    return f"Failed to start workers for model {model_name} version: {version_text}"


class WorkerWait:
    """Waits for nodes and workers, at most until this server stops. Blocks; call from a thread."""

    def __init__(
        self, registry: Registry, *, should_stop: Callable[[], bool], patience: TimeLimits
    ) -> None:
        self._registry = registry
        self._should_stop = should_stop  # asked every second
        self._patience = patience

    def for_workers(
        self,
        spec: ModelSpec,
        *,
        failures_before: Mapping[Slot, int],
        version_text: str,
        install_patience_s: float,
    ) -> WorkerProgress:
        """Waits for `min_worker` to `max_worker` workers on each live node.

        Ends when all are ready, or when `startup_timeout` has passed since the archive was
        unpacked, as on the nodes. If one node's workers fail to start and another's are ready, the
        progress is PARTIAL. If another client scales meanwhile, the new number counts.
        `failures_before`: each slot's failed starts before the change, which do not count.
        `install_patience_s`: added to `startup_timeout`, for the archive's requirements.

        Raises:
            InternalError, OutOfResources, DependenciesFailed: a worker failed to start, and no
                other node has all of its workers ready.
            VersionNotFound: the version was unregistered meanwhile.
            Draining: this server stops.
        """
        seconds = spec.startup_timeout_s + self._patience.grace_s + install_patience_s
        ends_s = time.monotonic() + seconds
        latest_s = ends_s + self._patience.archive_s
        failed: list[WorkerStatus] = []
        progress = WorkerProgress.NONE

        def is_over() -> bool:
            nonlocal spec, failed, progress, ends_s
            entry = self._registry.get(spec.model_name)
            if entry is not None or not self._registry.is_lost():  # otherwise nodes restore it
                spec = still_registered(entry, spec)
            workers = self._registry.workers(spec.key)
            # A node still unpacks the archive and has not started a process.
            if any(it.state is WorkerState.STARTING and not it.pid for it in workers):
                ends_s = min(time.monotonic() + seconds, latest_s)
            failed = _failed(workers, spec, failures_before)
            good = self._registry.alive_nodes() - {worker.node_id for worker in failed}
            on_good_nodes = [worker for worker in workers if worker.node_id in good]
            progress = _progress(on_good_nodes, spec, nodes=max(1, len(good)))
            return progress is WorkerProgress.DONE or bool(failed and not good)

        if not self._until(is_over, lambda: ends_s) and time.monotonic() < ends_s:
            raise _draining()
        if failed:
            error = _why_failed(failed, spec.key, version_text)
            if progress is WorkerProgress.NONE:
                raise error
            return WorkerProgress.PARTIAL
        return progress

    def for_node(self) -> bool:
        """Returns whether a node runs; waits a while for one."""
        ends_s = time.monotonic() + self._patience.node_s
        return self._until(
            lambda: bool(self._registry.nodes()),
            lambda: ends_s,
            _LOOK_FOR_NODE_S,
            is_patient=False,
        )

    def until_listed(self, spec: ModelSpec) -> None:
        """Waits until a node has listed workers of the version, if it is to have some.

        TorchServe lists workers before it answers, so a request that follows at once is not
        refused, but waits until they have loaded. Gives up after a while: neither a slow node nor a
        Redis that goes away is an error, as the version is registered.
        """
        ends_s = time.monotonic() + self._patience.listed_s
        with contextlib.suppress(errors.StoreUnavailable):
            self._until(
                lambda: not spec.min_worker or bool(self._registry.workers(spec.key)),
                lambda: ends_s,
                is_patient=False,
            )

    def until_gone(self, key: VersionKey, timeout_s: float) -> None:
        """Waits until no live node runs a worker of this version, or the name is registered again.

        Raises:
            RequestTimeout: a worker is still there after `timeout_s`.
            Draining: this server stops.
        """
        ends_s = time.monotonic() + timeout_s

        def is_gone() -> bool:
            # A new registration of the version takes the workers over.
            entry = self._registry.get(key.model_name)
            is_registered_again = entry is not None and key.model_version in entry.versions
            return is_registered_again or not self._registry.workers(key)

        if not self._until(is_gone, lambda: ends_s):
            if self._should_stop():
                raise _draining()
            raise errors.RequestTimeout(f"Timed out while cleaning resources: {key.model_name}")

    def _until(
        self,
        is_true: Callable[[], bool],
        ends_s: Callable[[], float],
        slice_s: float = _SLICE_S,
        *,
        is_patient: bool = True,
    ) -> bool:
        """Waits until `is_true()`; returns False when the time is over or this server stops.

        If `is_patient`, it also waits while Redis is away: the caller has changed the registry
        already, and an error would make its client repeat the change.
        """
        while True:
            try:
                with self._registry.changes() as wait:
                    while not is_true():
                        left_s = ends_s() - time.monotonic()
                        if left_s <= 0 or self._should_stop():
                            return False
                        wait(min(left_s, slice_s))
                    return True
            except errors.StoreUnavailable:
                if not is_patient or time.monotonic() >= ends_s() or self._should_stop():
                    raise
                time.sleep(_RETRY_S)


def _draining() -> errors.Draining:
    return errors.Draining("The server is shutting down.", retry_after_s=1.0)


def _progress(workers: Sequence[WorkerStatus], spec: ModelSpec, *, nodes: int) -> WorkerProgress:
    ready = sum(worker.state is WorkerState.READY for worker in workers)
    if ready >= spec.min_worker * nodes and len(workers) <= spec.max_worker * nodes:
        return WorkerProgress.DONE
    return WorkerProgress.PARTIAL if ready else WorkerProgress.NONE


def _failed(
    workers: Sequence[WorkerStatus], spec: ModelSpec, failures_before: Mapping[Slot, int]
) -> list[WorkerStatus]:
    """Returns the workers that did not start, except surplus ones, which will be stopped."""
    return [
        worker
        for worker in workers
        if worker.slot < spec.min_worker
        and (
            worker.state is WorkerState.FAILED
            or worker.failures > failures_before.get((worker.node_id, worker.slot), 0)
        )
    ]


def _why_failed(
    failed: Sequence[WorkerStatus], key: VersionKey, version_text: str
) -> errors.ServeError:
    for worker in failed:
        if worker.reason == errors.DependenciesFailed.reason:
            return errors.DependenciesFailed(worker.error)
    # The answer has TorchServe's text. What handlers raise is for operators only.
    reasons = "; ".join(sorted({worker.error for worker in failed if worker.error}))
    log.error("not started model=%s version=%s: %s", *key, reasons)
    is_out_of_memory = any(worker.is_out_of_memory for worker in failed)
    kind = errors.OutOfResources if is_out_of_memory else errors.InternalError
    error = kind(failed_text(key.model_name, version_text))
    causes = sorted({worker.traceback or worker.error for worker in failed} - {""})
    error.operators_text = "\n\n".join(causes[:_MOST_CAUSES])
    return error


class Registrar:
    """Changes the registry, and returns TorchServe's texts. Blocks; call from a thread.

    Source: TorchServe 0.12 `ManagementRequestHandler`, `ApiUtils`.
    """

    def __init__(self, services: Services) -> None:
        self._settings = services.settings
        self._registry = services.registry
        self._control = services.control
        self._catalog = services.catalog
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
        workers = self._registry.workers(key)
        failures_before = {(worker.node_id, worker.slot): worker.failures for worker in workers}
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
        # The next prediction of this model asks the registry.
        self._loop.call_soon_threadsafe(self._catalog.forget, model_name)
