"""What two releases must agree on, as wire version 2 writes it: byte by byte, and key by key.

No bytes here come from the code under test. Who has to change one in "wire version 2" makes a
release that does not understand those before it: it gets another WIRE_VERSION, and this file
another such part (docs/adr/0016-releases.md). Records of the registry are read by every release, so
fields may be added there, and none taken away.
"""

import json

import pytest
from msgspec import msgpack

from batching.models.statuses import HostSample, NodeStatus, WorkerState, WorkerStatus
from batching.protocol import WIRE_VERSION, BatchTiming, ClosedBy, Reply, ReplyChunk
from batching.store import keys
from batching.store.keys import CONTROL_QUEUE, VersionKeys
from batching.store.records import decode_reply
from batching.store.registry.control_queue import INSPECT_ARCHIVE
from tests.support import KEY, body_of, items_of, make_reply, make_spec

TAG = "{model2:digits:1.0}"
REQUEST = msgpack.encode((2, {"content-type": "text/plain"}, [["body", "text/plain", b"a"]]))
TIMING = [8, 1200, 40_000, True, "delay"]


def now_us(client):
    second, micros = client.time()
    return second * 1_000_000 + micros


# --- wire version 2


def test_releases_of_other_wire_versions_have_queues_of_their_own():
    assert VersionKeys.of(KEY).tag == TAG
    assert VersionKeys.of(KEY, 1).tag == "{m:digits:1.0}"
    assert VersionKeys.of(KEY, WIRE_VERSION + 1).tag == "{model3:digits:1.0}"


def test_worker_serves_what_an_ingress_of_version_2_has_queued(harness):
    # Given
    client, at_us = harness.client, now_us(harness.client)
    client.zadd(f"{TAG}:ingress_beats", {"ingress-a": at_us // 1000})
    client.expire(f"{TAG}:ingress_beats", 60)
    line = f"0 - 0 {at_us} 500 60000 ingress-a\n".encode()
    client.hset(f"{TAG}:requests", mapping={"a": line + REQUEST, "b": line})
    client.expire(f"{TAG}:requests", 60)
    client.set(f"{TAG}:bodies:b", REQUEST, px=60_000)
    client.rpush(f"{TAG}:queue", "a", "b")
    worker = harness.worker()
    # When
    batch = worker.claim(2, 0.0)
    # Then
    assert [body_of(item.request) for item in batch.items] == ["a", "a"]
    assert client.lrange(f"{TAG}:leases:worker-a", 0, -1) == [b"a:1", b"b:1"]
    # When
    worker.reply(items_of(batch), [make_reply("A"), make_reply("B", size=200_000)])
    # Then it is told, in its own words
    small = b"a" + msgpack.encode((2, 200, b"A", {}, "", "", "", None, 0))
    assert client.lrange(f"{TAG}:answered:ingress-a", 0, -1) == [small, b"b@1"]
    assert client.get(f"{TAG}:replies:a") == small
    assert msgpack.decode(client.get(f"{TAG}:large_replies:b:1")[1:])[:2] == [2, 200]


def test_ingress_reads_what_a_worker_of_version_2_has_answered(harness):
    # Given
    client = harness.client
    reply = msgpack.encode((2, 200, b"A", {"x-a": "1"}, "OK", "T", "r", TIMING, 2))
    client.set(f"{TAG}:replies:a", b"a" + reply, px=60_000)
    client.rpush(f"{TAG}:answered:ingress-a", b"a" + reply, b"b")
    client.expire(f"{TAG}:answered:ingress-a", 60)
    client.set(f"{TAG}:replies:b", b"b!worker_crashed", px=60_000)
    # When
    found = harness.ingress().receive([])
    # Then
    expected = Reply(
        200,
        b"A",
        {"x-a": "1"},
        "OK",
        "T",
        "r",
        BatchTiming(8, 1200, 40_000, True, ClosedBy.DELAY),
        2,
    )
    assert decode_reply("a", found["a"]) == expected
    assert decode_reply("b", found["b"]).reason == "worker_crashed"
    chunk = msgpack.encode((2, 3, b"piece", 200, {}))
    assert ReplyChunk.decode(chunk) == ReplyChunk(3, b"piece")


def test_ingress_queues_as_a_worker_of_version_1_expects_it(harness):
    # When
    harness.submit("a")
    # Then
    client = harness.client
    line, _, wire = client.hget(f"{TAG}:requests", "a").partition(b"\n")
    assert line.split(b" ")[:3] == [b"0", b"-", b"0"]
    assert line.split(b" ")[4:] == [b"0", b"60000", b"ingress-a"]
    assert wire == REQUEST
    assert client.lrange(f"{TAG}:queue", 0, -1) == [b"a"]
    assert client.zscore(f"{TAG}:ingress_beats", "ingress-a") > 0
    assert client.llen(f"{TAG}:wakeups") == 1


# --- every version

MODEL = {
    "default": "1.0",
    "versions": {
        "1.0": {
            "model_name": "digits",
            "model_version": "1.0",
            "model_url": "digits.mar",
            "handler": "handler.py",
            "batch_size": 4,
            "colour": "green",
        }
    },
    "weights": {"1.0": 100},
}


def test_registry_of_another_release_is_read_and_nothing_of_it_is_lost(harness):
    # Given a model with fields that only a later release knows, and without most of ours
    client, registry = harness.client, harness.registry()
    client.hset("{ferry}:models", "digits", json.dumps(MODEL))
    spec = registry.resolve("digits", None)
    assert (spec.batch_size, spec.max_batch_delay_ms) == (4, 100)
    # When all that may be changed is
    registry.scale(KEY, 1, 2)
    registry.create(make_spec(model_version="2.0"))
    registry.set_default("digits", "2.0")
    registry.set_default("digits", "1.0")
    registry.remove(make_spec(model_version="2.0").key)
    known = registry.snapshot()
    client.flushall()
    registry.restore(known.values())
    # Then
    record = json.loads(client.hget("{ferry}:models", "digits"))
    assert record["weights"] == {"1.0": 100}
    assert record["versions"]["1.0"]["colour"] == "green"
    assert record["versions"]["1.0"]["min_worker"] == 1
    assert "others" not in record["versions"]["1.0"]


def test_what_nodes_of_another_release_say_of_themselves_is_read(harness):
    # Given
    ours = {"worker_id": "w", "node_id": "n", "slot": 0, "pid": 1, "device": "", "started_at": ""}
    worker = json.dumps({**ours, "state": "WARMING", "colour": "green"})
    sample = ["CPUUtilization", 5.0, "", "a fourth"]
    node = {"node_id": "n", "hostname": "h", "pid": 1, "started_at": "", "samples": [sample]}
    harness.client.hset("{ferry}:node_info", "n", json.dumps({**node, "colour": "green"}))
    harness.client.zadd("{ferry}:nodes", {"n": now_us(harness.client) // 1000})
    harness.client.expire("{ferry}:nodes", 60)
    harness.client.hset(f"{TAG}:workers", "w", worker)
    # When
    registry = harness.registry()
    # Then: neither ready nor given up
    [status] = registry.workers(KEY)
    assert status.state is WorkerState.LOADING
    [found] = registry.nodes()
    assert found == NodeStatus("n", "h", 1, "", (HostSample("CPUUtilization", 5.0),))


@pytest.mark.parametrize("state", list(WorkerState))
def test_states_of_this_release_are_what_they_are(state):
    status = WorkerStatus("w", "n", 0, state, 1, "cpu", "now")
    assert WorkerStatus.from_json(status.to_json()) == status


def test_names_that_every_release_asks_for():
    assert (keys.MODELS, keys.NODES, keys.NODE_INFO, keys.EPOCH, keys.CHANGES) == (
        "{ferry}:models",
        "{ferry}:nodes",
        "{ferry}:node_info",
        "{ferry}:epoch",
        "{ferry}:changes",
    )
    assert (CONTROL_QUEUE, INSPECT_ARCHIVE) == (
        "ferry-control",
        "workers.control_jobs.inspect_archive",
    )
