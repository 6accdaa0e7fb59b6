"""Answers the metrics port's route, in the Prometheus text that TorchServe writes.

It is the old format, with a comma before the closing brace.
Source: TorchServe 0.12 (simpleclient_common `TextFormat.write004`), docs/metrics.md "Metrics mode".
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from flask import request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from batching.errors import StoreUnavailable
from batching.metrics import (
    ABOVE,
    GAUGES,
    SUM,
    DeclaredMetric,
    MetricKind,
    Series,
    host_dimensions,
    read_metrics_config,
    worker_dimensions,
)
from batching.models.spec import VersionKey
from batching.models.statuses import WorkerState
from batching.store.redis_errors import AWAY, REFUSED
from batching.store.registry.registry import Registry, read_metrics
from ingress.http1.exchange import HttpAnswer
from ingress.metrics.ingress_metrics import (
    LAST_VALUES,
    LEGACY,
    VERSION_LABELS,
    handler_family,
    torchserve_family,
)
from ingress.services import Services
from ingress.torchserve.answers import typed_answer

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INFINITE = {math.inf: "+Inf", -math.inf: "-Inf"}


class MetricsView:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._declared = read_metrics_config(services.settings.metrics_config)

    def metrics(self) -> HttpAnswer:
        services, mode = self._services, self._services.settings.metrics_mode
        families = [] if mode == "log" else services.numbers.collect()
        if mode == "legacy":
            families = [family for family in families if family.name in LEGACY]
        elif mode != "log":
            read = partial(read_metrics, services.probe_client)
            families += stored_families(services.probe_registry, read, self._declared)
        return typed_answer(write_text(families, request.args.getlist("name[]")), _CONTENT_TYPE)


def write_text(families: Iterable[Metric], names: Collection[str] = ()) -> bytes:
    """Returns the text of the families, or only of the ones with these names."""
    lines: list[str] = []
    for family in families:
        samples = family.samples
        name = samples[0].name if family.type == "counter" and samples else family.name
        if names and name not in names:
            continue
        text = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {family.type}"]
        for sample in samples:
            labels = "".join(f'{key}="{_escaped(value)}",' for key, value in sample.labels.items())
            braces = f"{{{labels}}}" if labels else ""
            value = _INFINITE.get(sample.value) or repr(float(sample.value))
            lines.append(f"{sample.name}{braces} {value}")
    # A client's label may hold half a surrogate pair, which must not fail the scrape.
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


# --- what Redis, nodes and handlers measure. Redis is only asked at a scrape. Every ingress exports
# the same values: expressions take the maximum over ingresses, not the sum.

# What can happen to a request in the queue; each is a counter of the version in Redis.
# accepted = replied + cancelled + expired + orphaned + failed + refused + open.
EVENTS = (
    *("accepted", "replied", "cancelled", "expired", "orphaned", "failed", "refused"),
    *("reclaimed", "released", "stale"),
)
# How tries to send webhooks ended; each is a counter `webhooks_...` of the version.
WEBHOOK_OUTCOMES = ("delivered", "retried", "failed", "gone")

# Name, meaning, attribute of a queue's status.
_QUEUE_GAUGES = (
    ("ferry_queue_depth", "Requests waiting for a worker.", "waiting"),
    ("ferry_queue_open_requests", "Requests not answered yet, of all ingresses.", "open_requests"),
    ("ferry_queue_capacity", "Requests that may wait (job_queue_size).", "capacity"),
    ("ferry_queue_oldest_age_seconds", "Age of the oldest waiting request.", "oldest_age_s"),
    ("ferry_jobs_waiting", "Jobs waiting for a worker; urgent ones are requests.", "jobs"),
    ("ferry_jobs_oldest_age_seconds", "Age of the oldest waiting job.", "oldest_job_age_s"),
)
# Name, meaning, attribute of the status of Redis.
_REDIS_GAUGES = (
    ("ferry_redis_round_trip_seconds", "A PING and its answer.", "round_trip_s"),
    ("ferry_redis_memory_used_bytes", "Memory that Redis uses.", "memory_used_bytes"),
    ("ferry_redis_memory_limit_bytes", "maxmemory of Redis; 0: none.", "memory_limit_bytes"),
    ("ferry_redis_clients", "Connections to Redis, of everybody.", "clients"),
)
_REDIS_COUNTERS = (
    ("ferry_redis_commands", "Commands that Redis has carried out.", "commands"),
    ("ferry_redis_evicted_keys", "Keys that Redis dropped at maxmemory.", "evicted_keys"),
)


def stored_families(
    registry: Registry,
    read: Callable[[VersionKey], Mapping[Series, float]],
    declared: Sequence[DeclaredMetric],
) -> list[Metric]:
    """Returns all that is in Redis; while it is away, only that it is, after one try."""
    up = "ferry_redis_up", "Whether Redis answered this ingress just now."
    try:
        return [
            GaugeMetricFamily(*up, value=1),
            *_redis_families(registry),
            *_worker_families(registry),
            *_version_families(registry),
            *_node_families(registry),
            *handler_families(registry, read, declared),
        ]
    except (*AWAY, StoreUnavailable):
        return [GaugeMetricFamily(*up, value=0)]


def _redis_families(registry: Registry) -> Iterator[Metric]:
    store = registry.store()
    for name, meaning, attribute in _REDIS_GAUGES:
        yield GaugeMetricFamily(name, meaning, value=getattr(store, attribute))
    for name, meaning, attribute in _REDIS_COUNTERS:
        yield CounterMetricFamily(name, meaning, value=getattr(store, attribute))


def _worker_families(registry: Registry) -> Iterator[Metric]:
    nodes = registry.nodes()
    yield GaugeMetricFamily("ferry_nodes", "Nodes that beat.", value=len(nodes))
    meaning = "Lines of log and of workers that standard output and error of a node did not take."
    dropped = CounterMetricFamily("ferry_node_lines_dropped", meaning, labels=("node", "hostname"))
    for node in nodes:
        dropped.add_metric((node.node_id, node.hostname), node.lines_dropped)
    meaning = "Workers that the live nodes should run (min_worker x nodes)."
    wanted = GaugeMetricFamily("ferry_workers_wanted", meaning, labels=VERSION_LABELS)
    workers = GaugeMetricFamily(
        "ferry_workers", "Worker processes of live nodes.", labels=(*VERSION_LABELS, "state")
    )
    alive = registry.alive_nodes()
    for spec in registry.specs():
        wanted.add_metric(spec.key, spec.min_worker * len(nodes))
        states = Counter(worker.state for worker in registry.workers(spec.key, alive))
        # States without a worker, too: an alert on a missing series could not fire.
        for state in WorkerState:
            workers.add_metric((*spec.key, state.value), states[state])
    yield from (dropped, wanted, workers)


def _version_families(registry: Registry) -> Iterator[Metric]:
    queues = {spec.key: registry.queue(spec) for spec in registry.specs()}
    for name, meaning, attribute in _QUEUE_GAUGES:
        gauge = GaugeMetricFamily(name, meaning, labels=VERSION_LABELS)
        for key, queue in queues.items():
            gauge.add_metric(key, getattr(queue, attribute))
        yield gauge
    meaning = "What has become of requests since the version was registered, of all ingresses."
    events = CounterMetricFamily("ferry_queue_events", meaning, labels=(*VERSION_LABELS, "event"))
    meaning = "Tries to tell receivers of jobs, by how they ended."
    webhooks = CounterMetricFamily("ferry_webhooks", meaning, labels=(*VERSION_LABELS, "outcome"))
    for key, queue in queues.items():
        for event in EVENTS:
            events.add_metric((*key, event), queue.counters.get(event, 0))
        for outcome in WEBHOOK_OUTCOMES:
            webhooks.add_metric((*key, outcome), queue.counters.get(f"webhooks_{outcome}", 0))
    yield from (events, webhooks)


def _node_families(registry: Registry) -> Iterator[Metric]:
    samples = list(_node_samples(registry))
    for name in GAUGES:
        if name not in LAST_VALUES:
            yield torchserve_family(name, [sample[1:] for sample in samples if sample[0] == name])


def _node_samples(registry: Registry) -> Iterator[tuple[str, dict[str, str], float]]:
    nodes = registry.nodes()
    for node in nodes:
        for sample in node.samples:
            labels = {**host_dimensions(sample), "Hostname": node.hostname}
            yield sample.name, labels, sample.value
    hosts = {node.node_id: node.hostname for node in nodes}
    alive = registry.alive_nodes()
    for spec in registry.specs():
        for worker in registry.workers(spec.key, alive):
            if worker.load_ms > 0:
                labels = worker_dimensions(worker.worker_id, spec.key)
                labels["Hostname"] = hosts.get(worker.node_id, "")
                yield "WorkerLoadTime", labels, worker.load_ms


def handler_families(
    registry: Registry,
    read: Callable[[VersionKey], Mapping[Series, float]],
    declared: Sequence[DeclaredMetric],
) -> list[Metric]:
    """Returns the measurements of all versions' handlers.

    As in TorchServe, a declared metric needs no value.
    """
    families = {it.name: handler_family(it.name, it.kind, it.unit) for it in declared}
    values: dict[str, dict[tuple[tuple[str, str], ...], dict[str, float]]] = {}
    measured = []
    for spec in registry.specs():
        with contextlib.suppress(REFUSED):  # Redis is a socket that others may write to
            measured.append(read(spec.key))
    for series, value in (pair for of in measured for pair in of.items()):
        family = families.setdefault(
            series.name, handler_family(series.name, series.kind, series.unit)
        )
        # In a scrape, a name has one kind: the first model's.
        if family.type == series.kind:
            parts = values.setdefault(series.name, {}).setdefault(series.labels, {})
            # If two models have equal labels, sums are added, and one gauge is kept.
            is_gauge = series.kind is MetricKind.GAUGE
            parts[series.part] = value if is_gauge else parts.get(series.part, 0.0) + value
    for name, by_labels in values.items():
        for labels, parts in sorted(by_labels.items()):
            _add_samples(families[name], dict(labels), parts)
    return [family for _, family in sorted(families.items())]


def _add_samples(metric: Metric, labels: dict[str, str], parts: Mapping[str, float]) -> None:
    if metric.type != MetricKind.HISTOGRAM:
        metric.add_sample(metric.name, labels, parts.get("", 0.0))
        return
    count = 0.0
    for bound in (*sorted(parts.keys() - {SUM, ABOVE}, key=float), ABOVE):
        count += parts.get(bound, 0.0)
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, parts.get(SUM, 0.0))
