"""B8: garbage that is written to Redis by hand breaks nothing and makes nothing run.

Everything here goes in by RPUSH, SET and HSET, past our own calls.
"""

import contextlib
import json
import pickle  # noqa: TID251 - what an attacker would write
import socket
import sys
from dataclasses import replace

import pytest
from msgspec import msgpack
from rq import Queue
from rq.exceptions import DeserializationError
from rq.job import Job
from rq.serializers import JSONSerializer

from batching.errors import RecordUnreadable, ServeError
from batching.models.entry import ModelEntry
from batching.models.statuses import HostSample, NodeStatus, WorkerState, WorkerStatus
from batching.protocol import Batch
from batching.store import keys
from batching.store.clients import for_rq
from batching.store.keys import CONTROL_QUEUE
from batching.store.records import decode_reply
from batching.store.registry.control_queue import INSPECT_ARCHIVE
from batching.store.registry.registry import Registry
from tests.support import KEY, ids_of, items_of, make_reply, make_spec
from workers.control_jobs import make_worker

NODE = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
WORKER = WorkerStatus("node-a-1", "node-a", 0, WorkerState.READY, 43, "cpu", "now")


class Bomb:
    """Unpickled, it would look up a class, which the audit hook hears."""

    def __reduce__(self):
        return exec, ("import os; os._exit(66)",)


GARBAGE = {
    "pickle": pickle.dumps(Bomb()),
    "json": b'{"a": 1}',
    "deep": b"\x91" * 50_000,
    "foreign version": msgpack.encode((99, {}, [])),
    "nothing": b"",
    "bytes": bytes(range(256)),
}


class _Audit:
    """Hears every class that the pickle module looks up, in this process, for ever."""

    def __init__(self):
        self.found = []
        self.is_listening = False
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if self.is_listening and event == "pickle.find_class":
            self.found.append(arguments)


_AUDIT = _Audit()


@pytest.fixture(autouse=True)
def _nothing_is_unpickled():
    _AUDIT.found.clear()
    _AUDIT.is_listening = True
    yield
    _AUDIT.is_listening = False
    assert _AUDIT.found == []


def test_b08_audit_hook_hears_an_unpickling():
    # Given: so that the silence of the other tests means something
    pickle.loads(pickle.dumps(Queue))
    # Then
    assert _AUDIT.found
    _AUDIT.found.clear()


@pytest.mark.parametrize("wire", GARBAGE.values(), ids=GARBAGE)
def test_b08_unreadable_request_fails_alone(real_harness, wire):
    # Given an honest request, and one whose content was overwritten
    harness = real_harness
    harness.submit("bad", "good")
    line = harness.client.hget(harness.keys.open, "bad").partition(b"\n")[0]
    harness.write_record("bad", line + b"\n" + wire)
    worker = harness.worker()
    # When
    batch = worker.claim(2, 0.0)
    # Then
    assert ids_of(batch) == ["good"]
    worker.reply(items_of(batch), [make_reply("ok")])
    assert sorted(harness.done()) == ["bad", "good"]
    reply = decode_reply("bad", harness.reply_value("bad"))
    assert (reply.status, reply.reason) == (500, "unreadable_request")
    assert harness.unaccounted() == 0


@pytest.mark.parametrize("element", [*GARBAGE.values(), b"\xff"], ids=[*GARBAGE, "an id"])
def test_b08_garbage_in_the_queue_is_ignored(real_harness, element):
    # Given: also an unreadable id with a record as it should be
    harness = real_harness
    harness.submit("good")
    harness.client.hset(harness.keys.open, b"\xff", harness.client.hget(harness.keys.open, "good"))
    for name in (harness.keys.queue, harness.keys.suspects):
        harness.client.lpush(name, element)
    worker = harness.worker()
    # When
    claimed = [worker.claim(4, 0.0) for _ in range(3)]
    # Then
    assert [ids_of(batch) for batch in claimed if isinstance(batch, Batch)] == [["good"]]


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
def test_b08_garbage_in_a_lease_harms_no_request(real_harness, value):
    # Given
    harness = real_harness
    harness.submit("good")
    worker = harness.worker()
    batch = worker.claim(1, 0.0)
    harness.client.rpush(harness.keys.lease_prefix + "worker-a", value)
    # When
    harness.silence_worker()
    with contextlib.suppress(ServeError):
        harness.node().reclaim(KEY, "worker-a", "crashed")
    # Then the honest one comes back, or its late reply is taken
    worker.reply(items_of(batch), [make_reply("ok")])
    assert harness.done() == ["good"]


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
def test_b08_garbage_in_the_registry_is_an_error_and_never_run(real_backend, value):
    # Given
    real_backend.client.hset(keys.MODELS, "bad", value)
    registry = Registry(real_backend.connect())
    # When / Then
    with pytest.raises(RecordUnreadable):
        registry.get("bad")
    assert registry.get("unknown") is None
    # And it can be removed
    registry.remove_unreadable("bad")
    assert registry.get("bad") is None


NO_RECORD = {
    **GARBAGE,
    "number": b"5",
    "no version": b'{"default": "1.0", "versions": {}}',
    "text for a number": ModelEntry("1.0", {"1.0": make_spec(min_worker="2")}).to_json().encode(),
    "text for a slot": replace(WORKER, slot="1").to_json().encode(),
    "text for a sample": replace(NODE, samples=(HostSample("CPU", "much"),)).to_json().encode(),
}


@pytest.mark.parametrize("value", NO_RECORD.values(), ids=NO_RECORD)
def test_b08_garbage_in_the_registry_costs_what_it_stands_for_only(real_harness, value, caplog):
    # Given
    harness, spec = real_harness, make_spec()
    registry = harness.registry()
    registry.create(spec)
    harness.join(NODE)
    harness.node().report(KEY, WORKER)
    for name in (keys.MODELS, keys.NODE_INFO, harness.keys.workers):
        harness.client.hset(name, "bad", value)
        harness.client.hset(name, b"\xff", value)
    # When / Then
    for _ in range(2):
        assert registry.specs() == [spec]
        assert registry.nodes() == [NODE]
        assert registry.workers(KEY) == [WORKER]
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    kinds, names = ("model", "node", "worker"), ("bad", r"\xff")
    assert sorted(told) == sorted(
        f"unreadable record {kind}={name}" for kind in kinds for name in names
    )
    # And a dead node is taken off the lists
    gone = harness.node().forget_nodes([NODE.node_id])
    assert [node.hostname for node in gone] == [NODE.hostname]
    assert set(harness.client.hkeys(harness.keys.workers)) == {b"bad", b"\xff"}


def test_b08_garbage_among_the_counters_hides_no_other(real_harness):
    # Given
    harness = real_harness
    harness.submit("a")
    harness.client.hset(
        harness.keys.counters, mapping={b"\xff": 1, "bad": "garbage", "huge": "9" * 5000}
    )
    # When / Then
    assert harness.registry().queue(make_spec()).counters == {"accepted": 1}


def test_b08_dead_workers_are_found_among_garbage_beats(real_harness):
    # Given
    harness = real_harness
    for name in ("node-a", "node-b"):
        harness.node().beat({}, name)
    harness.node().beat({KEY: ["worker-a"]})
    harness.client.zadd(keys.NODES, {"node-b": 1, b"\xfe": 1, b"\xff": 9e15})
    harness.client.zadd(harness.keys.worker_beats, {"worker-a": 1, b"\xff": 1})
    # When / Then
    assert harness.registry().alive_nodes() == {"node-a"}
    assert harness.node().dead_nodes() == ["node-b"]
    assert harness.node().dead_workers([KEY]) == [(KEY, "worker-a")]


@pytest.fixture
def control(real_backend):
    """A client, and a function that lets a control worker do all that waits."""
    client = for_rq(real_backend.connect())

    def work():
        worker = make_worker(client)
        with contextlib.suppress(DeserializationError, ValueError, TypeError):
            worker.work(burst=True, logging_level="CRITICAL")

    yield client, work
    client.flushall()
    client.close()


@pytest.mark.parametrize("data", [pickle.dumps(("os.mkdir", None, ("x",), {})), b"x", b"[]"])
def test_b08_control_job_that_is_no_json_is_never_run(control, data):
    # Given a job as RQ would write it with its own, pickling default
    client, work = control
    job = Job.create("os.getcwd", connection=client, serializer=JSONSerializer)
    job.save()
    client.hset(job.key, "data", data)
    client.rpush(f"rq:queue:{CONTROL_QUEUE}", job.id)
    # When
    work()
    # Then
    assert client.llen(f"rq:queue:{CONTROL_QUEUE}") == 0
    assert not [result for result in job.results() if result.return_value is not None]


def test_b08_control_job_runs_our_function_and_no_other(control, tmp_path):
    # Given: well-formed jobs that name other functions, also as callbacks
    client, work = control
    queue = Queue(CONTROL_QUEUE, connection=client, serializer=JSONSerializer)
    folder = str(tmp_path / "made")
    queue.enqueue("os.mkdir", args=(folder,))
    ours = queue.enqueue(INSPECT_ARCHIVE, args=("../nothing.mar",))
    client.hset(ours.key, "success_callback_name", "os.abort")
    client.hset(ours.key, "failure_callback_name", "os.abort")
    # When
    work()
    # Then
    assert not (tmp_path / "made").exists()
    assert ours.latest_result().return_value["error"] == "ModelNotFound"
    assert queue.count == 0


def test_b08_control_job_sends_no_request_to_whom_its_record_names(control):
    # Given: what RQ 2.12 and later would call when the job is done
    client, work = control
    queue = Queue(CONTROL_QUEUE, connection=client, serializer=JSONSerializer)
    done, failed = queue.enqueue(INSPECT_ARCHIVE, args=("x",)), queue.enqueue("os.getcwd")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        for job, status in ((done, "finished"), (failed, "failed")):
            hook = {"url": url, "job_status": status, "method": "POST", "timeout": 1}
            client.hset(job.key, "webhooks", json.dumps([hook]))
        # When
        work()
        # Then
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert done.latest_result() is not None
