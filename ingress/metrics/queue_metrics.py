"""Exports what Redis knows of queues, workers and itself. Asks it at each scrape, never between.

Every ingress exports the same values: expressions take the maximum over ingresses, not the sum.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from batching.errors import StoreUnavailable
from batching.models.spec import VersionKey
from batching.models.statuses import StoreStatus, WorkerState
from batching.process.outputs import dropped_lines
from batching.store.registry.registry import Registry

VERSION_LABELS = ("model", "version")

# What can happen to a request in the queue; each is a counter of the version in Redis.
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
# How tries to tell receivers of jobs ended; each is a counter `webhooks_...` of the version.
WEBHOOK_OUTCOMES = ("delivered", "retried", "failed", "gone")


class QueueCollector(Collector):
    """Exports queues, workers and Redis; while Redis is away, only that it is."""

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
        depth = _gauge("ferry_queue_depth", "Requests waiting for a worker.")
        open_requests = _gauge(
            "ferry_queue_open_requests", "Requests waiting or at a worker, of all ingresses."
        )
        capacity = _gauge("ferry_queue_capacity", "Requests that may wait (job_queue_size).")
        oldest_age = _gauge(
            "ferry_queue_oldest_age_seconds", "Since the oldest waiting request arrived; 0: none."
        )
        jobs = _gauge(
            "ferry_jobs_waiting",
            "Jobs waiting for a worker; urgent ones are requests.",
        )
        oldest_job = _gauge(
            "ferry_jobs_oldest_age_seconds", "Since the oldest waiting job arrived; 0: none."
        )
        events = CounterMetricFamily(
            "ferry_queue_events",
            "What has become of requests since the version was registered, of all ingresses.",
            labels=(*VERSION_LABELS, "event"),
        )
        webhooks = CounterMetricFamily(
            "ferry_webhooks",
            "Tries to tell receivers of jobs, by how they ended.",
            labels=(*VERSION_LABELS, "outcome"),
        )
        workers = _gauge("ferry_workers", "Worker processes of live nodes.", "state")
        wanted = _gauge(
            "ferry_workers_wanted", "Workers that the live nodes should run (min_worker x nodes)."
        )
        dropped = CounterMetricFamily(
            "ferry_node_lines_dropped",
            "Lines of log and of workers that standard output and error of a node did not take.",
            labels=("node", "hostname"),
        )
        statuses, alive = self._registry.nodes(), self._registry.alive_nodes()
        for node in statuses:
            dropped.add_metric((node.node_id, node.hostname), node.lines_dropped)
        nodes = len(statuses)
        for spec in self._registry.specs():
            key, queue = spec.key, self._registry.queue(spec)
            depth.add_metric(key, queue.waiting)
            open_requests.add_metric(key, queue.open_requests)
            capacity.add_metric(key, queue.capacity)
            oldest_age.add_metric(key, queue.oldest_age_s)
            jobs.add_metric(key, queue.jobs)
            oldest_job.add_metric(key, queue.oldest_job_age_s)
            for event in EVENTS:
                events.add_metric((*key, event), queue.counters.get(event, 0))
            for outcome in WEBHOOK_OUTCOMES:
                webhooks.add_metric((*key, outcome), queue.counters.get(f"webhooks_{outcome}", 0))
            states = Counter(worker.state for worker in self._registry.workers(key, alive))
            # States without a worker too: an alert on a series that is missing could not fire.
            for state in WorkerState:
                workers.add_metric((*key, state.value), states[state])
            wanted.add_metric(key, spec.min_worker * nodes)
        up = GaugeMetricFamily("ferry_nodes", "Nodes that beat.", value=nodes)
        of_requests = [depth, open_requests, capacity, oldest_age]
        return [up, *of_requests, jobs, oldest_job, events, webhooks, workers, wanted, dropped]


class ResubmissionCollector(Collector):
    """Exports how many requests this ingress submitted again because Redis had lost them."""

    def __init__(self, count: Callable[[], Mapping[VersionKey, int]]) -> None:
        self._count = count

    def collect(self) -> Iterator[Metric]:
        """Yields one family."""
        family = CounterMetricFamily(
            "ferry_resubmitted_requests",
            "Requests that Redis had lost and that this ingress submitted again.",
            labels=VERSION_LABELS,
        )
        for key, count in self._count().items():
            family.add_metric(key, count)
        yield family


class LogCollector(Collector):
    """Exports how many lines this ingress could not write."""

    def collect(self) -> Iterator[Metric]:
        """Yields one family."""
        text = "Lines of log that standard output and error of an ingress did not take."
        yield CounterMetricFamily("ferry_ingress_lines_dropped", text, value=dropped_lines())


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
