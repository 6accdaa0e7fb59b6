"""Answers three probes: /ping (TorchServe's), /livez and /readyz."""

import contextlib
from collections.abc import Set

from batching.errors import StoreUnavailable
from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerState
from batching.store.registry.registry import Registry

LIVE_TEXT = "Live"


class Lifecycle:
    """Says whether the ingress loads its startup models, or drains. Any thread may read it."""

    is_loading = is_draining = False


class Health:
    """Answers probes from a registry whose connections give up soon: a late answer is no use."""

    def __init__(self, registry: Registry, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._last_ping = True

    def is_healthy(self) -> bool:
        """Returns whether each model's default version has its workers, loading ones included.

        While Redis is away it returns the last answer: orchestrators restart what is not healthy,
        which would not bring Redis back. TorchServe opens its ports when its startup models are
        registered; here an earlier probe gets False.
        Source: TorchServe 0.12 `ApiUtils.getHealthStatus`.
        """
        if self._lifecycle.is_loading:
            return False
        with contextlib.suppress(StoreUnavailable):
            alive = self._registry.alive_nodes()
            self._last_ping = True
            for spec in self._staffed_specs():
                workers = self._registry.workers(spec.key, alive)
                good = sum(worker.state is not WorkerState.FAILED for worker in workers)
                self._last_ping = self._last_ping and good >= spec.min_worker
        return self._last_ping

    def why_not_ready(self) -> str:
        """Returns why a request sent now could not be served; empty when it could."""
        if self._lifecycle.is_draining:
            return "Draining"
        if self._lifecycle.is_loading:
            return "Loading models"
        try:
            alive, specs = self._registry.alive_nodes(), self._staffed_specs()
            idle = [spec.model_name for spec in specs if not self.is_ready(spec, alive)]
        except StoreUnavailable:
            return "Request store unavailable"
        return f"No ready worker: {', '.join(idle)}" if idle else ""

    def is_ready(self, spec: ModelSpec, alive: Set[str] | None = None) -> bool:
        """Returns whether a worker of this version is ready, on one of the `alive` nodes if given.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        workers = self._registry.workers(spec.key, alive)
        return any(worker.state is WorkerState.READY for worker in workers)

    def _staffed_specs(self) -> list[ModelSpec]:
        entries = self._registry.snapshot().values()
        specs = [entry.versions[entry.default_version] for entry in entries]
        return [spec for spec in specs if spec.min_worker > 0]
