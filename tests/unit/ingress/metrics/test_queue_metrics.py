"""What Redis knows, as an ingress exports it: on a real Redis, with requests in every place."""

import pytest

from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from batching.store.clients import connect
from batching.store.registry.registry import Registry
from ingress.metrics.queue_metrics import EVENTS, WEBHOOK_OUTCOMES, queue_families
from tests.support import KEY, items_of, make_reply, make_spec

NOWHERE = "unix:///nowhere/redis.sock"
SPEC = make_spec(min_worker=2, job_queue_size=10)
VERSION = {"model": KEY.model_name, "version": KEY.model_version}


def samples(registry):
    return [sample for family in queue_families(registry) for sample in family.samples]


def value(found, name, **labels):
    [only] = [s.value for s in found if s.name == name and labels.items() <= s.labels.items()]
    return only


@pytest.fixture
def staffed(real_harness):
    """Two nodes, and one of the four workers that they should run."""
    registry = Registry(real_harness.client)
    registry.create(SPEC)
    node = real_harness.node()
    for node_id in ("node-a", "node-b"):
        real_harness.join(NodeStatus(node_id, "host", 1, "2026-01-01T00:00:00.000Z"))
    status = WorkerStatus("worker-a", "node-a", 0, WorkerState.READY, 1, "cpu", "")
    node.report(KEY, status)
    return real_harness


def test_metrics_tell_waiting_from_open(staffed):
    # Given three requests at a worker, one answered, and two that wait, one of them for 7 s
    staffed.submit("a", "b", "c", "d")
    worker = staffed.worker()
    batch = worker.claim(4, 0.0)
    worker.reply(items_of(batch)[:1], [make_reply("A")])
    staffed.submit("e", "f")
    staffed.age_request("e", ms=7_000)

    # When
    found = samples(Registry(staffed.client))

    # Then
    assert value(found, "ferry_queue_depth", **VERSION) == 2
    assert value(found, "ferry_queue_open_requests", **VERSION) == 5
    assert value(found, "ferry_queue_capacity", **VERSION) == 10
    assert 7 <= value(found, "ferry_queue_oldest_age_seconds", **VERSION) < 17

    # And each accepted request is accounted for
    events = {
        event: value(found, "ferry_queue_events_total", event=event, **VERSION) for event in EVENTS
    }
    assert events == {event: 0 for event in EVENTS} | {"accepted": 6, "replied": 1}


def test_metrics_tell_jobs_from_requests(staffed):
    # Given
    staffed.submit("a")
    for job_id in ("j1", "j2", "j3"):
        staffed.submit_job(job_id)
    staffed.age_request("j1", ms=9_000)

    # When
    found = samples(Registry(staffed.client))

    # Then
    assert value(found, "ferry_queue_depth", **VERSION) == 1
    assert value(found, "ferry_queue_oldest_age_seconds", **VERSION) < 9
    assert value(found, "ferry_jobs_waiting", **VERSION) == 3
    assert 9 <= value(found, "ferry_jobs_oldest_age_seconds", **VERSION) < 19


def test_metrics_tell_how_webhooks_ended(staffed):
    # Given: as end_webhook.lua counts
    staffed.client.hset(staffed.keys.counters, "webhooks_delivered", 3)
    staffed.client.hset(staffed.keys.counters, "webhooks_retried", 2)

    # When
    found = samples(Registry(staffed.client))

    # Then: outcomes that have not been, too
    outcomes = {
        outcome: value(found, "ferry_webhooks_total", outcome=outcome, **VERSION)
        for outcome in WEBHOOK_OUTCOMES
    }
    assert outcomes == {"delivered": 3, "retried": 2, "failed": 0, "gone": 0}


def test_metrics_tell_ready_workers_from_wanted_ones(staffed):
    # When
    found = samples(Registry(staffed.client))

    # Then: min_worker on each of two nodes
    assert value(found, "ferry_nodes") == 2
    assert value(found, "ferry_workers_wanted", **VERSION) == 4
    assert value(found, "ferry_workers", state="READY", **VERSION) == 1
    assert value(found, "ferry_workers", state="FAILED", **VERSION) == 0


def test_metrics_tell_how_redis_is(staffed):
    # When
    found = samples(Registry(staffed.client))

    # Then
    assert value(found, "ferry_redis_up") == 1
    assert value(found, "ferry_redis_memory_used_bytes") > 100_000
    assert value(found, "ferry_redis_memory_limit_bytes") == 0
    assert value(found, "ferry_redis_clients") >= 1
    assert value(found, "ferry_redis_commands_total") > 1
    assert value(found, "ferry_redis_evicted_keys_total") == 0
    assert value(found, "ferry_redis_round_trip_seconds") > 0


def test_metrics_tell_only_that_redis_is_away():
    # Given
    registry = Registry(connect(NOWHERE))

    # When
    found = samples(registry)

    # Then: nothing that could be taken for an empty queue
    assert [(sample.name, sample.value) for sample in found] == [("ferry_redis_up", 0)]
