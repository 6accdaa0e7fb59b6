"""Exports what Redis knows of queues, workers and itself. Asks it at each scrape, never between.

Every ingress exports the same values: expressions take the maximum over ingresses, not the sum.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from batching.errors import StoreUnavailable
from batching.models.statuses import WorkerState
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

# Of a version's queue: name -> text, attribute of its status.
_QUEUE_GAUGES = {
    "ferry_queue_depth": ("Requests waiting for a worker.", "waiting"),
    "ferry_queue_open_requests": (
        "Requests waiting or at a worker, of all ingresses.",
        "open_requests",
    ),
    "ferry_queue_capacity": ("Requests that may wait (job_queue_size).", "capacity"),
    "ferry_queue_oldest_age_seconds": (
        "Since the oldest waiting request arrived; 0: none.",
        "oldest_age_s",
    ),
    "ferry_jobs_waiting": ("Jobs waiting for a worker; urgent ones are requests.", "jobs"),
    "ferry_jobs_oldest_age_seconds": (
        "Since the oldest waiting job arrived; 0: none.",
        "oldest_job_age_s",
    ),
}
# Of Redis.
_REDIS_GAUGES = {
    "ferry_redis_round_trip_seconds": ("A PING and its answer.", "round_trip_s"),
    "ferry_redis_memory_used_bytes": ("Memory that Redis uses.", "memory_used_bytes"),
    "ferry_redis_memory_limit_bytes": ("maxmemory of Redis; 0: none.", "memory_limit_bytes"),
    "ferry_redis_clients": ("Connections to Redis, of everybody.", "clients"),
}
_REDIS_COUNTERS = {
    "ferry_redis_commands": ("Commands that Redis has carried out.", "commands"),
    "ferry_redis_evicted_keys": (
        "Keys that Redis dropped at maxmemory; with noeviction none.",
        "evicted_keys",
    ),
}


def queue_families(registry: Registry) -> list[Metric]:
    """Returns what is known of queues, workers and Redis; while it is away, only that it is."""
    up = "ferry_redis_up", "Whether Redis answered this ingress just now."
    try:
        store = registry.store()
        families: list[Metric] = [GaugeMetricFamily(*up, value=1)]
        for name, (text, attribute) in _REDIS_GAUGES.items():
            families.append(GaugeMetricFamily(name, text, value=getattr(store, attribute)))
        for name, (text, attribute) in _REDIS_COUNTERS.items():
            families.append(CounterMetricFamily(name, text, value=getattr(store, attribute)))
        return [*families, *_node_families(registry), *_version_families(registry)]
    except StoreUnavailable:
        return [GaugeMetricFamily(*up, value=0)]


def _node_families(registry: Registry) -> Iterator[Metric]:
    nodes = registry.nodes()
    yield GaugeMetricFamily("ferry_nodes", "Nodes that beat.", value=len(nodes))
    dropped = CounterMetricFamily(
        "ferry_node_lines_dropped",
        "Lines of log and of workers that standard output and error of a node did not take.",
        labels=("node", "hostname"),
    )
    for node in nodes:
        dropped.add_metric((node.node_id, node.hostname), node.lines_dropped)
    yield dropped
    wanted = GaugeMetricFamily(
        "ferry_workers_wanted",
        "Workers that the live nodes should run (min_worker x nodes).",
        labels=VERSION_LABELS,
    )
    workers = GaugeMetricFamily(
        "ferry_workers", "Worker processes of live nodes.", labels=(*VERSION_LABELS, "state")
    )
    alive = registry.alive_nodes()
    for spec in registry.specs():
        wanted.add_metric(spec.key, spec.min_worker * len(nodes))
        states = Counter(worker.state for worker in registry.workers(spec.key, alive))
        # States without a worker too: an alert on a series that is missing could not fire.
        for state in WorkerState:
            workers.add_metric((*spec.key, state.value), states[state])
    yield from (wanted, workers)


def _version_families(registry: Registry) -> Iterator[Metric]:
    queues = {spec.key: registry.queue(spec) for spec in registry.specs()}
    for name, (text, attribute) in _QUEUE_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=VERSION_LABELS)
        for key, queue in queues.items():
            gauge.add_metric(key, getattr(queue, attribute))
        yield gauge
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
    for key, queue in queues.items():
        for event in EVENTS:
            events.add_metric((*key, event), queue.counters.get(event, 0))
        for outcome in WEBHOOK_OUTCOMES:
            webhooks.add_metric((*key, outcome), queue.counters.get(f"webhooks_{outcome}", 0))
    yield from (events, webhooks)
