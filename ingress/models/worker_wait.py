"""Waits for a node, and until a model version has the workers that the registry wants."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from batching import errors
from batching.models.entry import still_registered
from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import WorkerState, WorkerStatus
from batching.store.registry.registry import Registry
from ingress.services import TimeLimits

log = logging.getLogger(__name__)

# A wait is cut into slices, so that a stop of the server or a missed notice is seen in time.
_SLICE_S = 1.0
_RETRY_S = 0.2

_MOST_CAUSES = 3  # in an answer; as a rule all workers fail in the same way

_LOOK_FOR_NODE_S = 0.25  # a new node is not announced

Slot = tuple[str, int]


class WorkerProgress(Enum):
    """Says how many workers are ready when the wait ends."""

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
        progress is PARTIAL. If another client scales meanwhile, the new number counts.
        `failures_before`: from `failures_by_slot`, before the change. `install_patience_s`: added
        to `startup_timeout`, for the archive's requirements.

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
