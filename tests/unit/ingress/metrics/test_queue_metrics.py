"""What Redis knows, as an ingress exports it: on a real Redis, with requests in every place."""

from functools import partial

import pytest

from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from batching.store.clients import connect
from batching.store.registry.registry import Registry, read_metrics
from ingress.rest.metrics_api import EVENTS, WEBHOOK_OUTCOMES, stored_families
from tests.support import KEY, items_of, make_reply, make_spec

SPEC = make_spec(min_worker=2, job_queue_size=10)
VERSION = {"model": KEY.model_name, "version": KEY.model_version}


def samples(client):
    families = stored_families(Registry(client), partial(read_metrics, client), [])
    return [sample for family in families for sample in family.samples]


@pytest.fixture
def staffed(real_harness):
    """Two nodes, and one of the four workers that they should run."""
    Registry(real_harness.client).create(SPEC)
    for node_id in ("node-a", "node-b"):
        real_harness.join(NodeStatus(node_id, "host", 1, "2026-01-01T00:00:00.000Z"))
    status = WorkerStatus("worker-a", "node-a", 0, WorkerState.READY, 1, "cpu", "")
    real_harness.node().report(KEY, status)
    return real_harness


@pytest.fixture
def told(staffed):
    """Returns the value that a metric has now: of the version, unless it is of something else."""

    def value(name, **labels):
        is_general = name.startswith(("ferry_redis", "ferry_nodes"))
        wanted = labels if is_general else VERSION | labels
        [only] = [it for it in samples(staffed.client) if it.name == name and it.labels == wanted]
        return only.value

    return value


def test_metrics_tell_waiting_from_open_and_both_from_jobs(staffed, told):
    # Given three requests at a worker, one answered, and two that wait, one of them for 7 s
    staffed.submit("a", "b", "c", "d")
    worker = staffed.worker()
    batch = worker.claim(4, 0.0)
    worker.reply(items_of(batch)[:1], [make_reply("A")])
    staffed.submit("e", "f")
    staffed.age_request("e", ms=7_000)
    # Then
    assert told("ferry_queue_depth") == 2
    assert told("ferry_queue_open_requests") == 5
    assert told("ferry_queue_capacity") == 10
    assert 7 <= told("ferry_queue_oldest_age_seconds") < 17
    # And each accepted request is accounted for
    events = {event: told("ferry_queue_events_total", event=event) for event in EVENTS}
    assert events == dict.fromkeys(EVENTS, 0) | {"accepted": 6, "replied": 1}
    # When jobs wait, too
    for job_id in ("j1", "j2", "j3"):
        staffed.submit_job(job_id)
    staffed.age_request("j1", ms=20_000)
    # Then
    assert told("ferry_queue_depth") == 2
    assert told("ferry_queue_oldest_age_seconds") < 20
    assert told("ferry_jobs_waiting") == 3
    assert 20 <= told("ferry_jobs_oldest_age_seconds") < 30


def test_metrics_tell_how_webhooks_ended(staffed, told):
    # Given: as end_webhook.lua counts
    ended = {"webhooks_delivered": 3, "webhooks_retried": 2}
    staffed.client.hset(staffed.keys.counters, mapping=ended)
    # When
    outcomes = {it: told("ferry_webhooks_total", outcome=it) for it in WEBHOOK_OUTCOMES}
    # Then: outcomes that have not been, too
    assert outcomes == {"delivered": 3, "retried": 2, "failed": 0, "gone": 0}


def test_metrics_tell_how_nodes_and_redis_are(told):
    # Then: min_worker on each of two nodes
    assert told("ferry_nodes") == 2
    assert told("ferry_workers_wanted") == 4
    assert told("ferry_workers", state="READY") == 1
    assert told("ferry_workers", state="FAILED") == 0
    # And
    assert told("ferry_redis_up") == 1
    assert told("ferry_redis_memory_used_bytes") > 100_000
    assert told("ferry_redis_memory_limit_bytes") == 0
    assert told("ferry_redis_clients") >= 1
    assert told("ferry_redis_commands_total") > 1
    assert told("ferry_redis_evicted_keys_total") == 0
    assert told("ferry_redis_round_trip_seconds") > 0


def test_b08_garbage_in_place_of_measurements_hides_nothing_else(staffed, told):
    # Given
    staffed.submit("a")
    staffed.client.set(staffed.keys.metrics, "garbage", ex=60)
    # Then
    assert told("ferry_redis_up") == 1
    assert told("ferry_queue_depth") == 1


def test_metrics_tell_only_that_redis_is_away():
    # When
    found = samples(connect("unix:///nowhere/redis.sock"))
    # Then: nothing that could be taken for an empty queue
    assert [(sample.name, sample.value) for sample in found] == [("ferry_redis_up", 0)]
