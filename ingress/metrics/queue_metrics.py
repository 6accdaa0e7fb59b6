"""What Redis knows of queues, workers and itself, as metrics. Asked at each scrape, never between.

Every ingress tells the same of these, so expressions take the maximum over ingresses, not the sum.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from batching.errors import StoreUnavailable
from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import QueueStatus, StoreStatus, WorkerState, WorkerStatus
from batching.store.registry.registry import Registry

VERSION_LABELS = ("model", "version")

# What may become of a request in the queue; each is a counter of the version in Redis.
# accepted = replied + cancelled + expired + orphaned + failed + refused + open.
EVENTS = (
    "accepted",
    "replied",
    "cancelled",
    "expired",
    "orphaned",
    "failed",
    "refused",
    "reclaimed",
    "released",
    "stale",
)


class QueueCollector(Collector):
    """Queues, workers and Redis. While Redis is away, only that it is."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yields all families, or `ferry_redis_up 0` alone."""
        try:
            families = [*_store_families(self._registry.store()), *self._version_families()]
        except StoreUnavailable:
            families = [_redis_up(0)]
        yield from families

    def _version_families(self) -> list[Metric]:
        nodes = len(self._registry.nodes())
        versions = _VersionFamilies()
        alive = self._registry.alive_nodes()
        for spec in self._registry.specs():
            queue, workers = self._registry.queue(spec), self._registry.workers(spec.key, alive)
            versions.add(spec, queue, workers, nodes)
        return [
            GaugeMetricFamily("ferry_nodes", "Nodes that beat.", value=nodes),
            *versions.families(),
        ]


class ResubmissionCollector(Collector):
    """What this ingress sent again because Redis had lost it."""

    def __init__(self, count: Callable[[], Mapping[VersionKey, int]]) -> None:
        self._count = count

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = CounterMetricFamily(
            "ferry_resubmitted_requests",
            "Requests that Redis had lost and that this ingress submitted again.",
            labels=VERSION_LABELS,
        )
        for key, count in self._count().items():
            family.add_metric(key, count)
        yield family


class _VersionFamilies:
    """One family per fact about a version."""

    def __init__(self) -> None:
        self._depth = _gauge("ferry_queue_depth", "Requests waiting for a worker.")
        self._open = _gauge(
            "ferry_queue_open_requests", "Requests waiting or at a worker, of all ingresses."
        )
        self._capacity = _gauge("ferry_queue_capacity", "Requests that may wait (job_queue_size).")
        self._oldest_age = _gauge(
            "ferry_queue_oldest_age_seconds", "Since the oldest waiting request arrived; 0: none."
        )
        self._events = CounterMetricFamily(
            "ferry_queue_events",
            "What has become of requests since the version was registered, of all ingresses.",
            labels=(*VERSION_LABELS, "event"),
        )
        self._workers = _gauge("ferry_workers", "Worker processes of live nodes.", "state")
        self._wanted = _gauge(
            "ferry_workers_wanted", "Workers that the live nodes should run (min_worker x nodes)."
        )

    def add(
        self, spec: ModelSpec, queue: QueueStatus, workers: Iterable[WorkerStatus], nodes: int
    ) -> None:
        """One version's values."""
        key = spec.key
        self._depth.add_metric(key, queue.waiting)
        self._open.add_metric(key, queue.open_requests)
        self._capacity.add_metric(key, queue.capacity)
        self._oldest_age.add_metric(key, queue.oldest_age_s)
        for event in EVENTS:
            self._events.add_metric((*key, event), queue.counters.get(event, 0))
        states = Counter(worker.state for worker in workers)
        # Those without a worker as well: an alert on a state that was never seen could not fire.
        for state in WorkerState:
            self._workers.add_metric((*key, state.value), states[state])
        self._wanted.add_metric(key, spec.min_worker * nodes)

    def families(self) -> list[Metric]:
        """Returns all of them."""
        return [
            self._depth,
            self._open,
            self._capacity,
            self._oldest_age,
            self._events,
            self._workers,
            self._wanted,
        ]


def _store_families(store: StoreStatus) -> list[Metric]:
    gauges = {
        "ferry_redis_round_trip_seconds": ("A PING and its answer.", store.round_trip_s),
        "ferry_redis_memory_used_bytes": ("Memory that Redis uses.", store.memory_used_bytes),
        "ferry_redis_memory_limit_bytes": (
            "maxmemory of Redis; 0: none.",
            store.memory_limit_bytes,
        ),
        "ferry_redis_clients": ("Connections to Redis, of everybody.", store.clients),
    }
    counters = {
        "ferry_redis_commands": ("Commands that Redis has carried out.", store.commands),
        "ferry_redis_evicted_keys": (
            "Keys that Redis dropped at maxmemory; with noeviction none.",
            store.evicted_keys,
        ),
    }
    return [
        _redis_up(1),
        *(GaugeMetricFamily(name, text, value=value) for name, (text, value) in gauges.items()),
        *(CounterMetricFamily(name, text, value=value) for name, (text, value) in counters.items()),
    ]


def _redis_up(value: int) -> GaugeMetricFamily:
    text = "Whether Redis answered this ingress just now."
    return GaugeMetricFamily("ferry_redis_up", text, value=value)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=(*VERSION_LABELS, *labels))
