"""Waits for a node, and until a model version's workers are what the registry wants."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from batching.errors import (
    DependenciesFailed,
    Draining,
    InternalError,
    OutOfResources,
    RequestTimeout,
    ServeError,
    StoreUnavailable,
)
from batching.models.entry import still_registered
from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import WorkerState, WorkerStatus
from batching.store.registry.registry import Registry
from ingress.services import TimeLimits

log = logging.getLogger(__name__)

# A wait is cut into slices, so that a stopping server and a missed notice are seen in time.
_SLICE_S = 1.0
_RETRY_S = 0.2

_MOST_CAUSES = 3  # that an answer has; as a rule all workers fail alike

_LOOK_FOR_NODE_S = 0.25  # a node that comes is not announced

Slot = tuple[str, int]


class WorkerProgress(Enum):
    """How far the workers have come when the wait ends."""

    DONE = "done"
    PARTIAL = "partial"
    NONE = "none"


def failed_text(model_name: str, version_text: str) -> str:
    return f"Failed to start workers for model {model_name} version: {version_text}"


def failures_by_slot(workers: Sequence[WorkerStatus]) -> dict[Slot, int]:
    """Counts the failed starts so far, so that a wait only counts new ones."""
    return {(worker.node_id, worker.slot): worker.failures for worker in workers}


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
        progress is PARTIAL. A new number of workers, from another client, is followed.
        `failures_before`: from `failures_by_slot`, before the change. `install_patience_s`: beyond
        `startup_timeout`, for the archive's requirements.

        Raises:
            InternalError, OutOfResources, DependenciesFailed: a worker failed to start, and no
                other node has all ready.
            VersionNotFound: the version was unregistered meanwhile.
            Draining: this server stops.
        """
        seconds = spec.startup_timeout_s + self._patience.grace_s + install_patience_s
        deadline = _Deadline(seconds, self._patience.archive_s)
        failed: list[WorkerStatus] = []
        progress = WorkerProgress.NONE

        def is_over() -> bool:
            nonlocal spec, failed, progress
            entry = self._registry.get(spec.model_name)
            if entry is not None or not self._registry.is_lost():  # else nodes restore it
                spec = still_registered(entry, spec)
            workers = self._registry.workers(spec.key)
            # A node still unpacks the archive and has not started a process.
            if any(it.state is WorkerState.STARTING and not it.pid for it in workers):
                deadline.begin_anew()
            failed = _failed(workers, spec, failures_before)
            whole = self._registry.alive_nodes() - {worker.node_id for worker in failed}
            there = [worker for worker in workers if worker.node_id in whole]
            progress = _progress(there, spec, nodes=max(1, len(whole)))
            return progress is WorkerProgress.DONE or bool(failed and not whole)

        if not self._until(is_over, deadline.left_s) and deadline.left_s() > 0:
            raise _draining()
        if failed:
            error = _why_failed(failed, spec.key, version_text)
            if progress is WorkerProgress.NONE:
                raise error
            return WorkerProgress.PARTIAL
        return progress

    def for_node(self) -> bool:
        """Returns whether a node runs, or has come in time."""
        deadline = _Deadline(self._patience.node_s)
        return self._until(
            lambda: bool(self._registry.nodes()),
            deadline.left_s,
            _LOOK_FOR_NODE_S,
            is_patient=False,
        )

    def until_listed(self, key: VersionKey) -> None:
        """Waits until a node has taken the version on, so that requests may queue for its workers.

        Returns without one after a while: a node that is slow to react is no error. Nor is a Redis
        that goes away meanwhile: the version is registered.
        """
        deadline = _Deadline(self._patience.listed_s)
        with contextlib.suppress(StoreUnavailable):
            self._until(
                lambda: bool(self._registry.workers(key)), deadline.left_s, is_patient=False
            )

    def until_gone(self, key: VersionKey, timeout_s: float) -> None:
        """Waits until no live node runs a worker of this version, or it is registered again.

        Raises:
            RequestTimeout: a worker is still there after `timeout_s`.
            Draining: this server stops.
        """

        def is_gone() -> bool:
            # A version that is registered again takes the workers over.
            entry = self._registry.get(key.model_name)
            is_there_again = entry is not None and key.model_version in entry.versions
            return is_there_again or not self._registry.workers(key)

        if not self._until(is_gone, _Deadline(timeout_s).left_s):
            if self._should_stop():
                raise _draining()
            raise RequestTimeout(f"Timed out while cleaning resources: {key.model_name}")

    def _until(
        self,
        is_so: Callable[[], bool],
        left_s: Callable[[], float],
        slice_s: float = _SLICE_S,
        *,
        is_patient: bool = True,
    ) -> bool:
        """Waits until `is_so()` is true; returns False when time is over or this server stops.

        If `is_patient`, it also waits while Redis is away: the caller has changed the registry
        already, and an error would make its client repeat that.
        """
        while True:
            try:
                with self._registry.changes() as wait:
                    while not is_so():
                        if left_s() <= 0 or self._should_stop():
                            return False
                        wait(min(max(0.0, left_s()), slice_s))
                    return True
            except StoreUnavailable:
                if not is_patient or left_s() <= 0 or self._should_stop():
                    raise
                time.sleep(_RETRY_S)


def _draining() -> Draining:
    return Draining("The server is shutting down.", retry_after_s=1.0)


class _Deadline:
    """Ends a wait. It may begin anew while an archive is being unpacked, up to `anew_s`."""

    def __init__(self, seconds: float, anew_s: float = 0.0) -> None:
        self._seconds = seconds
        self._latest_start_s = time.monotonic() + anew_s
        self.begin_anew()

    def left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def begin_anew(self) -> None:
        self._deadline_s = min(time.monotonic(), self._latest_start_s) + self._seconds


def _progress(workers: Sequence[WorkerStatus], spec: ModelSpec, *, nodes: int) -> WorkerProgress:
    ready = sum(worker.state is WorkerState.READY for worker in workers)
    if ready >= spec.min_worker * nodes and len(workers) <= spec.max_worker * nodes:
        return WorkerProgress.DONE
    return WorkerProgress.PARTIAL if ready else WorkerProgress.NONE


def _failed(
    workers: Sequence[WorkerStatus], spec: ModelSpec, failures_before: Mapping[Slot, int]
) -> list[WorkerStatus]:
    """Returns the workers that did not start. Those that are to go need not."""
    return [
        worker
        for worker in workers
        if worker.slot < spec.min_worker
        and (
            worker.state is WorkerState.FAILED
            or worker.failures > failures_before.get((worker.node_id, worker.slot), 0)
        )
    ]


def _why_failed(failed: Sequence[WorkerStatus], key: VersionKey, version_text: str) -> ServeError:
    for worker in failed:
        if worker.reason == DependenciesFailed.reason:
            return DependenciesFailed(worker.error)
    # The answer has TorchServe's text. What handlers raise is for operators only.
    errors = "; ".join(sorted({worker.error for worker in failed if worker.error}))
    log.error("not started model=%s version=%s: %s", *key, errors)
    is_out_of_memory = any(worker.is_out_of_memory for worker in failed)
    kind = OutOfResources if is_out_of_memory else InternalError
    error = kind(failed_text(key.model_name, version_text))
    causes = sorted({worker.traceback or worker.error for worker in failed} - {""})
    error.operators_text = "\n\n".join(causes[:_MOST_CAUSES])
    return error
