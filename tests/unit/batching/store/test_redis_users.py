"""deploy/redis/users.acl on the real server: enough for each user's work, and no more."""

import re
from pathlib import Path

import pytest
import redis

from batching.metrics import Measurement, MetricKind, Series
from batching.models.statuses import NodeStatus
from batching.protocol import Batch, Reply, ReplyChunk
from batching.store import keys
from batching.store.clients import connect, connect_async
from batching.store.ingress_queue import Submission, SubmitCode
from batching.store.jobs.job_records import JobStatus, Receiver
from batching.store.jobs.job_store import WebhookOutcome
from batching.store.node_queue import ReclaimMode
from batching.store.records import LargeReply, decode_reply
from batching.store.registry.registry import Registry, read_metrics
from batching.store.scripts.loader import source
from batching.store.server_check import check_client
from batching.store.worker_queue import ReplyCode
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server
from tests.redis_users import PASSWORD, USERS, add_user
from tests.support import (
    KEY,
    Backend,
    QueueHarness,
    eventually,
    items_of,
    make_reply,
    make_spec,
    wire_of,
)

ROOT = Path(__file__).parents[4]
LARGE = 300_000  # has a key of its own
INGRESS = "submit cancel audit living measure swap_model submit_jobs retry_job cancel_job"
WORKER = (
    "claim reply chunk progress reclaim beat refuse report record living swap_model "
    "claim_webhooks end_webhook"
)
SCRIPTS_OF = {"ingress": {*INGRESS.split()}, "worker": {*WORKER.split()}}


@pytest.fixture(scope="module")
def server():
    with EmbeddedRedis(find_server()) as running:
        admin = connect(running.url)
        for name in USERS:
            if name != "default":  # this test's own way in
                add_user(admin, name)
        yield running
        admin.close()


@pytest.fixture
def admin(server):
    client = connect(server.url)
    client.flushall()
    client.execute_command("SCRIPT", "FLUSH")  # so that scripts have to be loaded by the users
    client.acl_log_reset()
    yield client
    denied = [(entry["username"], entry["object"]) for entry in client.acl_log()]
    client.close()
    assert denied == []


def url_of(server, user):
    return server.url.replace("unix://", f"unix://{user}:{PASSWORD}@")


@pytest.fixture
def harnesses(server, admin):
    """The queue as the ingress and as a node sees it; both look into it with admin's eyes."""
    made = {}
    for user in ("ingress", "worker"):
        url = url_of(server, user)
        backend = Backend(admin, lambda url=url: connect_async(url), lambda url=url: connect(url))
        made[user] = QueueHarness(backend)
    made["ingress"].open()
    yield made["ingress"], made["worker"]
    for harness in made.values():
        harness.close()


def test_users_may_pass_a_request_through_its_whole_life(harnesses):
    ingress, worker = harnesses
    # When: small and large, submitted and claimed
    queue = ingress.ingress()
    large = Submission("large", 60_000, wire_of("large", size=LARGE))
    queue.submit([Submission("small", 60_000, wire_of("small")), large])
    hands = worker.worker()
    assert hands.wait_for_work(5.0)
    batch = hands.claim(2, 0.0)
    assert isinstance(batch, Batch)
    # Then: replied to, small and large, and received
    hands.reply(items_of(batch), [make_reply("ok"), make_reply("ok", size=LARGE)])
    replies = queue.receive([])
    assert sorted(replies) == ["large", "small"]
    assert None not in replies.values()
    assert queue.fetch(["small", "large"]) == replies
    assert queue.fetch_large({"large": "1"}, {})["large"] is not None
    queue.fetch_large({}, {"large": "1"})
    queue.discard(["small"])
    # When: audited, cancelled while it runs, sent in pieces, partly gathered and rung for
    ingress.submit("a", "b", "c", "d")
    queue.audit(["a"])
    running = items_of(hands.claim(3, 0.0))
    queue.cancel(["a"])
    assert hands.send(running[1:2], [ReplyChunk(0, b"piece")], 1.0) == [ReplyCode.STORED]
    assert hands.reply(running[2:], [make_reply("ok")]) == [ReplyCode.STORED]
    assert ingress.leased() == ["b"]
    hands.claim(2, 60.0)
    hands.wait_more(0.01)
    hands.wake_one()
    hands.recover()
    # Then
    assert ingress.unaccounted() == 0
    # And what handlers measure is recorded and read
    calls = Series("calls", MetricKind.COUNTER, "count", ())
    took = Series("took", MetricKind.GAUGE, "ms", ())
    hands.record([Measurement(calls, 1), Measurement(took, 5)])
    with ingress.backend.connect() as client:
        assert read_metrics(client, KEY) == {calls: 1, took: 5}


def test_users_may_take_a_job_through_its_whole_life(harnesses):
    ingress, worker = harnesses
    jobs, hands = ingress.jobs(), worker.worker()
    # When: under a key, submitted, small and large, found and listed
    assert jobs.take_key("f" * 64, "small") is None
    assert jobs.take_key("f" * 64, "other") == "small"
    jobs.keep_key("f" * 64, 120_000)
    for job_id, size in (("small", 0), ("large", LARGE), ("bad", 0)):
        assert ingress.submit_job(job_id, size=size) is SubmitCode.QUEUED
    assert [jobs.find(job_id).position for job_id in ("small", "large", "bad")] == [0, 1, 2]
    assert len(jobs.newest(KEY, 2**53, 10)) == 3
    # Then: claimed and replied to, and their results are found
    replies = [make_reply("ok"), make_reply("ok", size=LARGE), Reply(503, b"no", reason="x")]
    hands.reply(items_of(hands.claim(3, 0.0)), replies)
    assert decode_reply("small", jobs.find("small").result) == replies[0]
    with pytest.raises(LargeReply) as told:
        decode_reply("large", jobs.find("large").result)
    assert jobs.read_large(jobs.find("large"), told.value.attempt) is not None
    assert jobs.cancel("large").result == b""
    # When: tried again, and cancelled while it runs
    assert jobs.retry(jobs.find("bad")) is SubmitCode.QUEUED
    assert isinstance(hands.claim(1, 0.0), Batch)
    assert jobs.cancel("bad").status is JobStatus.CANCELLED
    assert ingress.unaccounted() == 0


def test_users_may_tell_a_receiver_of_a_job(harnesses):
    ingress, worker = harnesses
    # Given
    receiver = Receiver("https://example.com/", "http://localhost:8080", is_start_told=True)
    assert ingress.submit_job("a", receiver=receiver) is SubmitCode.QUEUED
    hands = worker.worker()
    hands.reply(items_of(hands.claim(1, 0.0)), [make_reply("ok")])
    # When
    webhooks = worker.webhooks()
    events = {event.name: event for event in webhooks.claim(10, 60_000)}
    assert worker.jobs().find("a").webhook.receiver == receiver
    webhooks.end(events["started"], WebhookOutcome.PENDING, 1000, "status 500")
    webhooks.end(events["succeeded"], WebhookOutcome.DELIVERED)
    # Then
    assert ingress.jobs().find("a").webhook.status == "delivered"


def test_users_may_end_jobs_that_were_not_run(harnesses):
    ingress, worker = harnesses
    jobs, node = ingress.jobs(), worker.node()
    # When: cancelled, too late, given back, without a version
    ingress.submit_job("cancelled", is_urgent=True)
    jobs.cancel("cancelled")
    ingress.submit_job("late", ttl_ms=1)
    eventually(lambda: jobs.find("late").status is JobStatus.EXPIRED)
    ingress.submit_job("left")
    assert isinstance(worker.worker().claim(2, 0.0), Batch)
    node.reclaim(KEY, "worker-a", ReclaimMode.RELEASED)
    node.refuse_waiting(KEY, "unregistered")
    # Then
    ends = {name: jobs.find(name).status.value for name in ("cancelled", "late", "left")}
    assert ends == {"cancelled": "cancelled", "late": "expired", "left": "failed"}
    # When a job has gone, its entry in the list goes with a later submit
    ingress.client.delete(f"{ingress.keys.job_prefix}cancelled")
    ingress.submit_job("next")
    # Then
    assert ingress.client.zscore(ingress.keys.job_index, "cancelled") is None


@pytest.mark.parametrize(
    "mode", [ReclaimMode.DEAD, ReclaimMode.CRASHED, ReclaimMode.RELEASED], ids=str
)
def test_worker_may_take_back_and_refuse(harnesses, mode):
    ingress, worker = harnesses
    node = worker.node()
    # Given
    ingress.submit("a", "b")
    assert isinstance(worker.worker().claim(2, 0.0), Batch)
    # When
    ingress.silence_worker()
    node.reclaim(KEY, "worker-a", mode)
    node.beat({KEY: ["worker-b"]})
    worker.worker("worker-b").claim(1, 0.0)
    node.reclaim(KEY, "worker-b", mode)
    node.refuse_waiting(KEY, "no_worker")
    node.bury(KEY)
    # Then no user was denied anything, as the admin fixture sees
    assert ingress.queued() == []


def test_worker_may_keep_the_lists_of_nodes_and_workers(harnesses):
    _, worker = harnesses
    node = worker.node()
    worker.join(NodeStatus("node-a", "host", 1, "2026-01-01T00:00:00.000Z"))
    assert node.dead_nodes() == []
    assert node.dead_workers([KEY]) == []
    node.forget(KEY, "worker-a")
    node.hide(KEY, "worker-a")
    node.leave("node-a")


@pytest.mark.parametrize("user", ["ingress", "worker"])
@pytest.mark.usefixtures("admin")
def test_users_may_work_with_the_registry(server, user):
    client = connect(url_of(server, user))
    registry = Registry(client)
    spec = make_spec()
    with registry.changes() as wait:
        registry.create(spec)
        assert wait(5.0)
    registry.create(make_spec(model_version="2.0"))
    registry.scale(spec.key, 2, 2)
    registry.set_default(spec.model_name, "2.0")
    registry.remove(spec.key)
    registry.restore(registry.snapshot().values())
    registry.mark()
    assert not registry.is_lost()
    assert sorted(registry.snapshot()) == [spec.model_name]
    assert registry.get(spec.model_name).default_version == "2.0"
    assert (registry.nodes(), registry.workers(spec.key)) == ([], [])
    registry.queue(spec)
    registry.store()
    check_client(client)
    client.close()


@pytest.mark.parametrize("user", ["ingress", "worker"])
@pytest.mark.parametrize(
    "command",
    [
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "GET", "*"),
        ("CONFIG", "SET", "dir", "/"),
        ("EVAL", "return 1", "0"),
        ("SCRIPT", "FLUSH"),
        ("FUNCTION", "LIST"),
        ("ACL", "LIST"),
        ("MONITOR",),
        ("SHUTDOWN",),
        ("REPLICAOF", "NO", "ONE"),
        ("MODULE", "LIST"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("GET", "another-owners"),
        ("SET", "m:echo:1.0", "x"),
        ("PUBLISH", "elsewhere", "x"),
    ],
)
def test_users_may_do_nothing_else(server, user, command):
    client = connect(url_of(server, user))
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)
    client.close()
    connect(server.url).acl_log_reset()


def test_script_may_not_do_what_its_user_may_not(server):
    # Given: loading scripts is allowed, as scripts are lost with every restart
    client = connect(url_of(server, "ingress"))
    digest = client.script_load("return redis.call('KEYS', '*')")
    # When / Then
    with pytest.raises(redis.exceptions.ResponseError, match="ACL failure"):
        client.evalsha(digest, 0)
    client.close()
    connect(server.url).acl_log_reset()


@pytest.mark.parametrize("user", ["ingress", "worker"])
def test_user_may_run_every_command_of_its_scripts(user):
    # Given: all of them, the rare branches too
    allowed = {rule[1:].lower() for rule in USERS[user] if rule.startswith("+")}
    called = set()
    for verb in SCRIPTS_OF[user]:
        # With the parts that they share
        for arguments in re.findall(r"redis\.p?call\(([^,)]+)", source(verb)):
            called |= {word.lower() for word in re.findall(r"'([A-Z]+)'", arguments)}
    # Then
    assert called
    assert called - allowed == set()
    known = set().union(*SCRIPTS_OF.values())
    assert {path.stem for path in (ROOT / "batching/store/scripts").glob("*.lua")} == known


def test_no_client_gets_in_without_a_name_and_no_password_is_shipped():
    assert USERS["default"] == ["off", "sanitize-payload", "resetchannels", "-@all"]
    assert set(USERS) == {"default", "admin", "ingress", "worker"}
    for rules in USERS.values():
        assert not any(rule.startswith((">", "#")) or rule == "nopass" for rule in rules)
    shared = {"~{ferry}:*", "~{model2:*", "~rq:*"}
    for user, patterns in {"ingress": shared | {"~{ferry_jobs:*"}, "worker": shared}.items():
        rules = USERS[user]
        assert "-@all" in rules
        assert not any(rule.startswith("+@") for rule in rules)
        assert {rule for rule in rules if rule[0] == "~"} == patterns
    # A sender of webhooks finds jobs, and changes no place of one.
    assert [rule for rule in USERS["worker"] if rule[0] == "%"] == ["%R~{ferry_jobs:*"]
    assert all(key.startswith("{ferry}:") for key in keys.PERMANENT)
