"""Waits for a node, and until a model version's workers are what the registry wants."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

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

log = logging.getLogger(__name__)

# A wait is cut into slices, so that a stopping server and a missed notice are seen in time.
_SLICE_S = 1.0
_RETRY_S = 0.2

# A node measures the same start-up time-out; it is given the time to say so.
STARTUP_GRACE_S = 5.0

_LOOK_FOR_NODE_S = 0.25  # a node that comes is not announced

# A node learns of a change within milliseconds; one that does not is busy or about to die.
LISTED_WITHIN_S = 2.0

# The largest archives are tens of gigabytes, and each node may have to download them.
MAX_PREPARATION_S = 900.0

Slot = tuple[str, int]

T = TypeVar("T")


class Progress(Enum):
    """How far the workers have come when the wait ends."""

    DONE = "done"
    PARTIAL = "partial"
    NONE = "none"


def failed_text(model_name: str, version_text: str) -> str:
    """What a client is told of a version that no worker could load, in TorchServe's words."""
    return f"Failed to start workers for model {model_name} version: {version_text}"


def failures_by_slot(workers: Sequence[WorkerStatus]) -> dict[Slot, int]:
    """Failed starts so far, so that a wait only counts new ones."""
    return {(worker.node_id, worker.slot): worker.failures for worker in workers}


class WorkerWait:
    """Waits for nodes and workers, until they report what is waited for or this server stops.

    Blocks; call from a thread.
    """

    def __init__(self, registry: Registry, should_stop: Callable[[], bool]) -> None:
        self._registry = registry
        self._should_stop = should_stop  # asked every second

    def for_workers(
        self,
        spec: ModelSpec,
        *,
        failures_before: Mapping[Slot, int],
        version_text: str,
        install_patience_s: float,
    ) -> Progress:
        """Returns how many workers are ready when all are, or when `startup_timeout` has passed.

        That time counts from when the archive is unpacked, as it does on the nodes. Where one
        node's workers fail to start and another's are ready, that is PARTIAL.

        Args:
            spec: as registered; `min_worker` to `max_worker` on each live node are waited for, or
                as many as somebody else scales it to meanwhile.
            failures_before: from `failures_by_slot`, before the change.
            version_text: how an error names the version.
            install_patience_s: seconds beyond `startup_timeout` for what the archive requires.

        Raises:
            InternalError, OutOfResources: a worker failed to start, and no other node has all
                ready.
            VersionNotFound: it was unregistered meanwhile.
            DependenciesFailed: what its archive requires cannot be installed.
            Draining: this server stops.
        """
        patience = _Patience(spec.startup_timeout_s + STARTUP_GRACE_S + install_patience_s)
        return self._outlast(
            lambda: self._follow(spec, patience, failures_before, version_text), patience
        )

    def for_node(self, timeout_s: float) -> bool:
        """Returns whether a node runs, or has come within `timeout_s`."""
        return self._until(lambda: bool(self._registry.nodes()), timeout_s, _LOOK_FOR_NODE_S)

    def until_listed(self, key: VersionKey) -> None:
        """A node has taken the version on, so that requests may queue for its workers.

        Returns without one after LISTED_WITHIN_S: nodes that are slow to react are no error. Nor
        is a Redis that goes away meanwhile: the version is registered.
        """
        with contextlib.suppress(StoreUnavailable):
            self._until(lambda: bool(self._registry.workers(key)), LISTED_WITHIN_S)

    def until_gone(self, key: VersionKey, timeout_s: float) -> None:
        """No live node runs a worker of this version any more, or it is registered again.

        Raises:
            RequestTimeout: they are still there after `timeout_s`.
            Draining: this server stops.
        """
        patience = _Patience(timeout_s)
        if not self._outlast(
            lambda: self._until(lambda: self._is_gone(key), patience.left_s()), patience
        ):
            self._raise_if_stopping()
            raise RequestTimeout(f"Timed out while cleaning resources: {key.model_name}")

    def _follow(
        self,
        spec: ModelSpec,
        patience: "_Patience",
        failures_before: Mapping[Slot, int],
        version_text: str,
    ) -> Progress:
        with self._registry.changes() as wait:
            while True:
                spec = self._as_registered(spec)
                workers = self._registry.workers(spec.key)
                if _is_preparing(workers):
                    patience.begin_anew()
                failed = _failed(workers, spec, failures_before)
                whole = self._registry.alive_nodes() - {worker.node_id for worker in failed}
                there = [worker for worker in workers if worker.node_id in whole]
                progress = _progress(there, spec, nodes=max(1, len(whole)))
                left_s = patience.left_s()
                is_over = progress is Progress.DONE or left_s <= 0
                if failed and (is_over or not whole):
                    error = _why_failed(failed, spec.key, version_text)
                    if progress is Progress.NONE:
                        raise error
                    return Progress.PARTIAL
                if is_over:
                    return progress
                self._raise_if_stopping()
                wait(min(left_s, _SLICE_S))

    def _outlast(self, attempt: Callable[[], T], patience: "_Patience") -> T:
        """Returns what the attempt returns; repeated while Redis is away, as long as time is left.

        The caller has changed the registry already: an error would make its client repeat that.
        """
        while True:
            try:
                return attempt()
            except StoreUnavailable:
                if patience.left_s() <= 0 or self._should_stop():
                    raise
                time.sleep(_RETRY_S)

    def _until(
        self, is_so: Callable[[], bool], timeout_s: float, slice_s: float = _SLICE_S
    ) -> bool:
        """Whether it is so, or has come to be within `timeout_s` and before this server stops."""
        deadline_s = time.monotonic() + timeout_s
        with self._registry.changes() as wait:
            while not is_so():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._should_stop():
                    return False
                wait(min(left_s, slice_s))
        return True

    def _is_gone(self, key: VersionKey) -> bool:
        # Workers of a version that somebody has registered again are, or will be, that one's.
        entry = self._registry.get(key.model_name)
        is_there_again = entry is not None and key.model_version in entry.versions
        return is_there_again or not self._registry.workers(key)

    def _as_registered(self, spec: ModelSpec) -> ModelSpec:
        entry = self._registry.get(spec.model_name)
        if entry is None and self._registry.is_lost():
            return spec  # nodes restore what they know
        return still_registered(entry, spec)

    def _raise_if_stopping(self) -> None:
        if self._should_stop():
            raise Draining("The server is shutting down.", retry_after_s=1.0)


class _Patience:
    """How long is waited; for workers, from when their archive is unpacked."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started_s = time.monotonic()
        self._deadline_s = self._started_s + seconds

    def left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def begin_anew(self) -> None:
        """It is being unpacked."""
        latest_s = self._started_s + MAX_PREPARATION_S
        self._deadline_s = min(time.monotonic(), latest_s) + self._seconds


def _is_preparing(workers: Sequence[WorkerStatus]) -> bool:
    """Returns whether a node still unpacks the archive, so that no process has been started."""
    return any(worker.state is WorkerState.STARTING and not worker.pid for worker in workers)


def _progress(workers: Sequence[WorkerStatus], spec: ModelSpec, *, nodes: int) -> Progress:
    ready = sum(worker.state is WorkerState.READY for worker in workers)
    if ready >= spec.min_worker * nodes and len(workers) <= spec.max_worker * nodes:
        return Progress.DONE
    return Progress.PARTIAL if ready else Progress.NONE


def _failed(
    workers: Sequence[WorkerStatus], spec: ModelSpec, failures_before: Mapping[Slot, int]
) -> list[WorkerStatus]:
    """Those that did not start, but for those that are to go: they need not."""
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
    # The answer's text is TorchServe's, and what handlers raise is for operators only.
    errors = "; ".join(sorted({worker.error for worker in failed if worker.error}))
    log.error("not started model=%s version=%s: %s", *key, errors)
    is_out_of_memory = any(worker.is_out_of_memory for worker in failed)
    kind = OutOfResources if is_out_of_memory else InternalError
    return kind(failed_text(key.model_name, version_text))
