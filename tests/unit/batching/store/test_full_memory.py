"""A Redis at its maxmemory: nothing new comes in, and all that is there goes on."""

from batching.batcher import Partial
from batching.metrics import Measurement, MetricKind, Series
from batching.models.statuses import NodeStatus
from batching.protocol import INLINE_LIMIT_BYTES, ReplyChunk
from batching.store.ingress_queue import AuditCode, CancelCode
from batching.store.node_queue import ReclaimMode
from batching.store.records import decode_reply
from batching.store.registry.registry import read_metrics
from batching.store.worker_queue import ReplyCode
from tests.support import KEY, ids_of, items_of, make_reply

NODE = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
CALLS = Measurement(Series("calls", MetricKind.COUNTER, "count", ()), 1)


def test_all_but_admission_goes_on_when_memory_is_full(real_harness, full_memory):
    harness, node, ingress = real_harness, real_harness.node(), real_harness.ingress()
    # Given requests that run or wait, or are late, and a worker and an ingress that seem dead
    worker, answers = harness.worker(), [make_reply("A"), make_reply("B", size=INLINE_LIMIT_BYTES)]
    harness.submit("small", "large", "begun", "left")
    small, large, begun, _ = items_of(worker.claim(4, 0.0))
    harness.submit("crashed", "crashed-late")
    harness.worker("worker-b").claim(2, 0.0)
    harness.submit("gone", "waiting", "late")
    for name in ("crashed-late", "late"):
        harness.age_request(name, 60_000)
    harness.silence_worker()
    harness.silence_ingress()
    full_memory()

    # Then all may say that they live
    harness.join(NODE)
    assert harness.registry().nodes() == [NODE]
    node.beat({KEY: ["worker-a"]})
    assert node.dead_workers([KEY]) == []
    assert ingress.audit(["small"]) == [AuditCode.OPEN]

    # And answers come, but for pieces and what was measured
    assert worker.send([begun], [ReplyChunk(0, b"piece")], 1.0) == [ReplyCode.FULL]
    assert worker.record([CALLS]) == 0
    assert worker.reply([small, large], answers, [CALLS]) == [ReplyCode.STORED] * 2
    assert decode_reply("large", harness.reply_value("large")) == answers[1]
    assert read_metrics(harness.client, KEY) == {}
    assert ingress.cancel(["left", "gone"]) == [CancelCode.CANCELLED] * 2

    # And what waits is claimed, taken back and refused
    assert isinstance(worker.claim(8, 30.0), Partial)
    assert ids_of(worker.claim(8, 0.0)) == ["waiting"]
    assert node.reclaim(KEY, "worker-b", ReclaimMode.CRASHED) == 2
    harness.client.zrem(harness.keys.worker_beats, "worker-a")
    assert node.refuse_waiting(KEY, "no_worker") == 1
    assert harness.reply_value("crashed") == b"crashed!no_worker"
    for name in ("crashed-late", "late"):
        assert harness.reply_value(name).endswith(b"!deadline_exceeded")
    assert harness.unaccounted() == 0
