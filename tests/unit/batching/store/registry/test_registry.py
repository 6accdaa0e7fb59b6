import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import fakeredis
import pytest
import redis

from batching import errors
from batching.models.spec import VersionKey
from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from batching.store import keys
from batching.store.clients import connect
from batching.store.keys import VersionKeys
from batching.store.node_queue import ReclaimMode
from batching.store.registry.control_queue import ControlQueue
from batching.store.registry.registry import Registry
from tests.support import KEY, items_of, make_reply, make_spec

V1 = make_spec(model_version="1.0", job_queue_size=10, config={"handler": {"top": 3}})
V2 = make_spec(model_version="2.0", device_ids=(0, 2))
UNKNOWN = VersionKey("unknown", "1.0")


@pytest.fixture
def registry(store_backend):
    client = store_backend.connect()
    yield Registry(client)
    client.close()


def max_queue(backend, spec):
    value = backend.client.hget(VersionKeys.of(spec.key).config, "max_queue")
    return value and int(value)


def test_registry_that_forgets_keeps_what_waits_until_the_version_is_back(registry, store_backend):
    # Given a version with a waiting request, and an entry of load_models that was registered
    registry.create(V1)
    registry.note_started("digits.mar")
    queue = VersionKeys.of(V1.key).queue
    store_backend.client.rpush(queue, "waiting")

    # When
    registry.forget()

    # Then nothing is registered, submits are refused, and nothing stays for ever
    assert registry.snapshot() == {}
    assert not registry.was_started("digits.mar")
    assert max_queue(store_backend, V1) is None
    assert store_backend.client.ttl(queue) > 0

    # And what waits is there for the version that comes back
    registry.create(V1)
    assert store_backend.client.lrange(queue, 0, -1) == [b"waiting"]
    assert store_backend.client.ttl(queue) == -1
    assert max_queue(store_backend, V1) == 10


def test_registry_returns_what_was_created_and_scaled(registry, store_backend):
    # When
    registry.create(V1)
    registry.create(V2)
    scaled = registry.scale(V2.key, 2, 4)

    # Then
    assert (scaled.min_worker, scaled.max_worker) == (2, 4)
    entry = registry.get("digits")
    assert entry.default_version == "1.0"
    assert entry.versions == {"1.0": V1, "2.0": scaled}
    assert registry.snapshot() == {"digits": entry}
    assert registry.specs() == [V1, scaled]
    assert max_queue(store_backend, V1) == 10


def test_create_says_that_redis_is_full_and_not_that_it_is_silent(real_harness, full_memory):
    # Given
    client = real_harness.backend.connect()
    full_memory()

    # When / Then
    with pytest.raises(errors.StoreUnavailable, match="at its maxmemory") as caught:
        Registry(client).create(V1)
    assert caught.value.reason == "queue_memory"
    with pytest.raises(errors.StoreFull):
        ControlQueue(client).inspect_archive("m.mar", timeout_s=1)
    client.close()


def test_create_refuses_a_version_that_is_there_and_leaves_it_as_it_is(registry, store_backend):
    # Given
    registry.create(V1)

    # When
    with pytest.raises(errors.Conflict) as caught:
        registry.create(make_spec(model_version="1.0", job_queue_size=99, batch_size=64))

    # Then
    assert caught.value.message == "Model version 1.0 is already registered for model digits"
    assert registry.get("digits").versions == {"1.0": V1}
    assert max_queue(store_backend, V1) == 10


def test_create_succeeds_for_exactly_one_of_many_at_the_same_time(store_backend):
    # Given
    start = threading.Barrier(4)

    def create(delay_ms):
        client = store_backend.connect()
        start.wait(5)
        try:
            Registry(client).create(make_spec(max_batch_delay_ms=delay_ms))
        except errors.Conflict:
            return None
        finally:
            client.close()
        return delay_ms

    # When
    with ThreadPoolExecutor(4) as pool:
        winners = [delay_ms for delay_ms in pool.map(create, range(4)) if delay_ms is not None]

    # Then
    assert len(winners) == 1
    spec = Registry(store_backend.client).resolve("digits", None)
    assert spec.max_batch_delay_ms == winners[0]


UNKNOWN_MODEL = (errors.ModelNotFound, "Model not found: unknown")
UNKNOWN_VERSION = (errors.VersionNotFound, "Model version: 9 does not exist for model: digits")


@pytest.mark.parametrize(
    ("do", "error", "text"),
    [
        (lambda registry: registry.resolve("unknown", None), *UNKNOWN_MODEL),
        (lambda registry: registry.resolve("unknown", "9"), *UNKNOWN_MODEL),
        (lambda registry: registry.resolve("digits", "9"), *UNKNOWN_VERSION),
        (lambda registry: registry.scale(UNKNOWN, 1, 1), *UNKNOWN_MODEL),
        (lambda registry: registry.scale(VersionKey("digits", "9"), 1, 1), *UNKNOWN_VERSION),
        (lambda registry: registry.remove(UNKNOWN), *UNKNOWN_MODEL),
        (lambda registry: registry.remove(VersionKey("digits", "9")), *UNKNOWN_VERSION),
        (lambda registry: registry.set_default("unknown", "1.0"), *UNKNOWN_MODEL),
        (
            lambda registry: registry.set_default("digits", "9"),
            errors.VersionNotFound,
            "Model version 9 does not exist for model digits",
        ),
        (
            lambda registry: registry.remove(V1.key),
            errors.VersionInUse,
            "Cannot remove default version for model digits",
        ),
    ],
)
def test_registry_refuses_with_torchserves_text_and_changes_nothing(registry, do, error, text):
    # Given
    registry.create(V1)
    registry.create(V2)
    before = registry.snapshot()

    # When
    with pytest.raises(error) as caught:
        do(registry)

    # Then
    assert type(caught.value) is error
    assert caught.value.message == text
    assert registry.snapshot() == before


def eternal_keys(harness):
    names = harness.client.scan_iter(f"{harness.keys.tag}:*")
    return {name.decode() for name in names if harness.client.pttl(name) == -1}


@pytest.mark.parametrize("how", ["registered again", "restored"])
def test_what_is_left_of_a_version_stays_only_while_it_is_registered(harness, how):
    # Given requests that wait, or are with a worker whose node has gone
    registry, spec = harness.registry(), make_spec()
    registry.create(spec)
    harness.submit("a", "b")
    harness.worker().claim(1, 0.0)
    harness.node().report(KEY, status_of("worker-a", "node-a", 0))
    harness.client.hset(harness.keys.metrics, "count", 1)
    eternal = {*harness.keys.permanent()} - {harness.keys.suspects}
    assert eternal_keys(harness) == eternal

    known = registry.snapshot()

    # When / Then
    registry.remove(spec.key)
    assert eternal_keys(harness) == set()
    # One at its last batch, whose node dies before it is over.
    harness.node().report(KEY, status_of("worker-a", "node-a", 0))
    assert eternal_keys(harness) == set()
    if how == "restored":
        registry.restore(known.values())
    else:
        registry.create(spec)
    assert eternal_keys(harness) == eternal
    assert harness.counters() == {"accepted": 2}


class InterruptedRedis(fakeredis.FakeRedis):
    """A client before whose next DEL another one gets a turn."""

    interruption = None

    def delete(self, *names):
        if self.interruption is not None:
            interruption, self.interruption = self.interruption, None
            interruption()
        return super().delete(*names)


def test_remove_leaves_a_version_usable_that_was_registered_again_meanwhile():
    # Given
    server = fakeredis.FakeServer()
    client = InterruptedRedis(server=server)
    again = make_spec(model_version="1.0", job_queue_size=77)
    Registry(client).create(V1)
    client.interruption = lambda: Registry(fakeredis.FakeRedis(server=server)).create(again)

    # When
    Registry(client).remove(V1.key)

    # Then
    assert Registry(client).resolve("digits", None) == again
    assert client.hget(VersionKeys.of(V1.key).config, "max_queue") == b"77"


def test_remove_of_a_failed_registration_takes_no_other_and_leaves_a_default(registry):
    # Given: others were added, and it was scaled, while its workers had not started yet
    for spec in (V1, V2, make_spec(model_version="3.0")):
        registry.create(spec)
    registry.scale(V1.key, 3, 3)
    # When / Then
    with pytest.raises(errors.VersionNotFound):
        registry.remove(V1.key, only=replace(V1, batch_size=V1.batch_size + 1))
    assert len(registry.specs()) == 3
    # When
    registry.remove(V1.key, only=V1)
    # Then the oldest of the others is the default
    entry = registry.get("digits")
    assert entry.default_version == "2.0"
    assert sorted(entry.versions) == ["2.0", "3.0"]


# --- after Redis was emptied


def test_restore_brings_everything_back_and_changes_nothing_that_is_there(registry, store_backend):
    # Given
    registry.create(V1)
    registry.create(V2)
    registry.set_default("digits", "2.0")
    registry.scale(V1.key, 3, 3)
    known = registry.snapshot()
    store_backend.client.flushall()

    # When
    registry.restore(known.values())

    # Then
    assert registry.snapshot() == known
    assert max_queue(store_backend, V1) == 10
    assert max_queue(store_backend, V2) == V2.job_queue_size

    # When an operator goes on from there, and another node is slower
    registry.scale(V1.key, 1, 1)
    registry.set_default("digits", "1.0")
    newer = registry.snapshot()
    registry.restore(known.values())

    # Then
    assert registry.snapshot() == newer


def test_repair_gives_registered_versions_their_configuration_and_no_others(
    registry, store_backend
):
    # Given: a server has lost what belongs to its versions, and one of them was removed meanwhile
    registry.create(V1)
    registry.create(V2)
    known = registry.snapshot()
    registry.remove(V2.key)
    store_backend.client.delete(VersionKeys.of(V1.key).config)

    # When
    registry.repair(known.values())

    # Then
    assert max_queue(store_backend, V1) == V1.job_queue_size
    assert not store_backend.client.exists(VersionKeys.of(V2.key).config)


def test_restore_adds_what_redis_has_lost_to_what_was_registered_since(registry, store_backend):
    # Given
    registry.create(V1)
    known = registry.snapshot()
    store_backend.client.flushall()
    registry.create(V2)

    # When
    registry.restore(known.values())

    # Then
    entry = registry.get("digits")
    assert entry.versions == {"1.0": V1, "2.0": V2}
    assert entry.default_version == "2.0"


# --- workers, nodes, queue


def status_of(worker_id, node_id, slot):
    return WorkerStatus(worker_id, node_id, slot, WorkerState.READY, 1, "cpu", "now")


def test_workers_are_those_of_live_nodes_by_node_and_slot(harness):
    # Given
    node = harness.node()
    for node_id in ("node-b", "node-a", "node-dead"):
        harness.join(NodeStatus(node_id, "host", 1, "now"))
    statuses = [
        status_of("w4", "node-b", 0),
        status_of("w2", "node-a", 1),
        status_of("w1", "node-a", 0),
        status_of("w9", "node-dead", 0),
    ]
    for status in statuses:
        node.report(KEY, status)
    harness.client.zincrby(keys.NODES, -10_000, "node-dead")

    # When
    registry = harness.registry()

    # Then
    assert [status.worker_id for status in registry.workers(KEY)] == ["w1", "w2", "w4"]
    assert [node.node_id for node in registry.nodes()] == ["node-a", "node-b"]
    assert registry.workers(VersionKey("digits", "9")) == []


def test_queue_counts_what_waits_what_has_become_of_the_rest_and_its_age(harness):
    # Given one that was answered, one that waits for its second attempt, and a younger one
    worker = harness.worker()
    harness.submit("a", "older")
    worker.reply(items_of(worker.claim(1, 0.0)), [make_reply("A")])
    worker.claim(1, 0.0)
    harness.submit("younger")
    harness.node().reclaim(KEY, "worker-a", ReclaimMode.CRASHED)
    harness.age_request("younger", ms=1_000)
    harness.age_request("older", ms=20_000)

    # When
    queue = harness.registry().queue(V1)

    # Then
    assert (queue.waiting, queue.open_requests, queue.capacity) == (2, 2, 10)
    assert {"accepted": 3, "replied": 1}.items() <= queue.counters.items()
    assert 20.0 <= queue.oldest_age_s < 25.0


def test_store_tells_its_memory_and_its_limit(redis_server):
    # Given
    client = connect(redis_server.url)
    client.config_set("maxmemory", 100_000_000)

    # When
    store = Registry(client).store()
    client.config_set("maxmemory", 0)
    client.close()

    # Then
    assert 100_000 < store.memory_used_bytes < store.memory_limit_bytes == 100_000_000
    assert store.clients >= 1
    assert store.commands >= 1
    assert store.evicted_keys == 0
    assert 0 < store.round_trip_s < 5


# --- changes


def test_changes_are_heard(harness):
    # Given
    registry = harness.registry()
    registry.create(V1)
    with harness.registry().changes() as wait:
        for change in (
            lambda: registry.create(V2),
            lambda: registry.scale(V1.key, 1, 1),
            lambda: registry.set_default("digits", "2.0"),
            lambda: registry.announce("digits"),
            lambda: harness.node().report(KEY, status_of("w1", "node-a", 0)),
            lambda: registry.remove(V1.key),
            lambda: registry.remove(V2.key),
        ):
            # When
            change()
            # Then
            assert wait(2.0)
            assert not wait(0.01)


# --- Redis is away


@pytest.mark.parametrize(
    "call",
    [
        lambda registry: registry.get("digits"),
        lambda registry: registry.create(V1),
        lambda registry: registry.scale(V1.key, 1, 1),
        lambda registry: registry.workers(V1.key),
        lambda registry: registry.changes().__enter__(),
    ],
)
def test_registry_says_that_redis_does_not_answer(tmp_path, call):
    # Given
    registry = Registry(connect(f"unix://{tmp_path}/no_server.sock"))

    # When / Then
    with pytest.raises(errors.StoreUnavailable) as caught:
        call(registry)
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        lambda registry: registry.scale(V1.key, 1, 1),
        lambda registry: registry.remove(V1.key),
        lambda registry: registry.remove_unreadable("garbage"),
    ],
)
def test_change_ends_at_a_server_that_takes_no_writes(real_backend, change):
    # Given
    client = real_backend.connect()
    registry = Registry(client)
    registry.create(V1)
    real_backend.client.hset(keys.MODELS, "garbage", b"hello")
    real_backend.client.config_set("min-replicas-to-write", 1)
    try:
        # When / Then
        with pytest.raises(errors.StoreUnavailable) as caught:
            change(registry)
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
        assert "replicas" in str(caught.value.__cause__)
    finally:
        real_backend.client.config_set("min-replicas-to-write", 0)
    change(registry)
    client.close()
