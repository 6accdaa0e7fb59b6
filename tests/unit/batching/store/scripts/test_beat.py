from batching.models.spec import VersionKey
from batching.store.keys import LEASE_TTL_MS, VersionKeys
from tests.support import DEAD_AFTER_MS, KEY

OTHER = VersionKey("letters", "2.0")


def test_beat_speaks_for_many_versions_and_brings_the_silent_back_to_life(harness):
    # Given
    node = harness.node()
    workers = {KEY: ["worker-a", "worker-b"], OTHER: ["worker-b", "worker-c"]}
    groups = [group for group in node._queue.groups(workers) if group]

    # When
    added = {}
    for group in groups:
        added |= node.beat({key: workers[key] for key in group}).added

    # Then
    assert added == {KEY: 1, OTHER: 2}
    for key, worker_ids in workers.items():
        members = harness.client.zrange(VersionKeys.of(key).worker_beats, 0, -1)
        assert members == [worker_id.encode() for worker_id in worker_ids]

    # When some are silent, and one for longer than it may be
    silent = [(KEY, "worker-a", 100), (KEY, "worker-b", -1000), (OTHER, "worker-b", 100)]
    for key, worker_id, more_ms in silent:
        beats = VersionKeys.of(key).worker_beats
        harness.client.zincrby(beats, -DEAD_AFTER_MS - more_ms, worker_id)

    # Then
    dead = [pair for group in groups for pair in node.dead_workers(group)]
    assert dead == [(KEY, "worker-a"), (OTHER, "worker-b")]
    node.beat({KEY: workers[KEY]})
    assert node.dead_workers([KEY]) == []


def test_beat_keeps_the_leases_alive(harness):
    # Given
    harness.submit("a")
    harness.worker().claim(1, 0.0)
    lease = harness.keys.lease_prefix + "worker-a"
    harness.client.pexpire(lease, 1000)

    # When
    harness.node().beat({KEY: ["worker-a"]})

    # Then
    assert harness.client.pttl(lease) > LEASE_TTL_MS - 10_000


def test_beat_tells_how_long_quiet_workers_have_been_silent(harness):
    # Given
    harness.node().beat({KEY: ["worker-b", "worker-c"]})
    harness.silence_worker("worker-a", ms=20_000)
    harness.silence_worker("worker-b", ms=25_000)
    heard_ms = sorted(
        harness.client.zscore(harness.keys.worker_beats, f"worker-{one}") for one in "ab"
    )

    # When
    before_ms = now_ms(harness)
    heard = harness.node().beat({KEY: ["worker-d"]}, quiet_s=10.0)
    after_ms = now_ms(harness)

    # Then: a worker that was heard just now is not quiet
    assert len(heard.silent_s) == 2
    for silent_s, last_ms in zip(sorted(heard.silent_s, reverse=True), heard_ms, strict=True):
        assert before_ms <= last_ms + round(1000 * silent_s) <= after_ms


def now_ms(harness):
    """By the clock of Redis, as it rounds it."""
    seconds, microseconds = harness.client.time()
    return 1000 * seconds + microseconds // 1000


def test_beat_wakes_a_worker_again_when_the_wakeup_was_lost(harness):
    # Given
    harness.submit("a")
    harness.client.delete(harness.keys.wakeups)

    # When
    for _ in range(2):
        harness.node().beat({KEY: ["worker-a"]})

    # Then
    assert harness.client.llen(harness.keys.wakeups) == 1
    assert harness.client.pttl(harness.keys.wakeups) > 0


def test_beat_forgets_ingresses_that_have_gone(harness):
    # Given
    for ingress_id, silent_ms in (("ingress-a", 0), ("ingress-b", 50_000), ("ingress-c", 70_000)):
        harness.submit(ingress_id, ingress_id=ingress_id)
        harness.silence_ingress(ingress_id, silent_ms)

    # When
    harness.node().beat({KEY: ["worker-a"]})

    # Then
    assert harness.client.zrange(harness.keys.ingress_beats, 0, -1) == [b"ingress-b", b"ingress-a"]
