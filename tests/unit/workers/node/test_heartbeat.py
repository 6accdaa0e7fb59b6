"""Nodes and workers that fall silent are taken for dead, except right after an outage."""

import asyncio
from dataclasses import replace

import fakeredis
import fakeredis.aioredis
import pytest
import redis

from batching.models.statuses import NodeStatus, WorkerState, WorkerStatus
from batching.process.retries import Backoff
from batching.store import keys
from batching.store.background_tasks import end_tasks
from batching.store.keys import VersionKeys
from batching.store.node_queue import NodeQueue
from batching.store.registry.registry import Registry
from tests.support import KEY, eventually_async, join, make_outage, make_spec
from workers.node.heartbeat import Heartbeat
from workers.slots.slot import SlotRecord

NODE = NodeStatus("node-a", "host", 42, "2026-01-01T00:00:00.000Z")
WORKER = WorkerStatus("node-a-1", "node-a", 0, WorkerState.READY, 43, "cpu", "now")
DEAD_AFTER_S = 0.3


class Parts:
    """A node's Heartbeat and DeadWorkers on a Redis that can be cut off; one worker is ready."""

    def __init__(self):
        self.server = fakeredis.FakeServer()
        self.registry = Registry(fakeredis.FakeRedis(server=self.server))
        client = fakeredis.aioredis.FakeRedis(server=self.server)
        self.queue = NodeQueue(client, int(DEAD_AFTER_S * 1000))
        outage = make_outage()
        record = SlotRecord(self.queue, outage, KEY, Backoff())
        record.status = WORKER
        self.forgotten = 0
        self.heart = Heartbeat(
            self.queue,
            NODE,
            lambda: [record],
            lambda: [KEY],
            self._count,
            dead_after_s=DEAD_AFTER_S,
            beat_s=0.05,
            outage=outage,
        )

    def _count(self):
        self.forgotten += 1

    def silence(self, worker_id):
        client = fakeredis.FakeRedis(server=self.server)
        client.zincrby(VersionKeys.of(KEY).worker_beats, -2000 * DEAD_AFTER_S, worker_id)

    def workers(self):
        return [worker.worker_id for worker in self.registry.workers(KEY)]


@pytest.fixture
def parts():
    return Parts()


async def test_nodes_that_died_unseen_are_forgotten_by_the_next_one(parts):
    gone, other = (replace(NODE, node_id=node_id) for node_id in ("node-x", "node-b"))
    lost = replace(WORKER, worker_id="node-x-1", node_id="node-x")
    client = fakeredis.FakeRedis(server=parts.server)

    # Given all nodes dead for so long that their last beats have expired
    parts.registry.create(make_spec())
    await join(parts.queue, gone)
    await parts.queue.report(KEY, lost)
    client.delete(keys.NODES, VersionKeys.of(KEY).worker_beats)
    # When
    await join(parts.queue, other)
    await parts.heart.beat()
    # Then
    assert sorted(client.hkeys(keys.NODE_INFO)) == [b"node-a", b"node-b"]
    assert client.hkeys(VersionKeys.of(KEY).workers) == [b"node-a-1"]


@pytest.mark.parametrize("is_new", [False, True], ids=["known", "new"])
async def test_no_worker_is_taken_for_dead_right_after_an_outage(parts, is_new):
    other = replace(WORKER, worker_id="node-b-1", node_id="node-b")

    # Given two nodes' workers that beat, unless the version is newer than the last beat
    if not is_new:
        await parts.heart.beat()
    await parts.queue.report(KEY, other)
    await parts.queue.beat({KEY: ["node-b-1"]})
    await join(parts.queue, replace(NODE, node_id="node-b"))
    # When no node can be heard for longer than a node may be silent
    parts.server.connected = False
    with pytest.raises(redis.ConnectionError):
        await parts.heart.beat()
    await eventually_async(lambda: not parts.heart.is_steady(KEY))
    parts.server.connected = True
    parts.silence("node-b-1")
    await parts.heart.beat()
    # Then silence means nothing yet
    assert await parts.queue.dead_workers([KEY]) == [(KEY, "node-b-1")]
    await parts.heart.reap()
    assert await parts.queue.dead_workers([KEY]) == [(KEY, "node-b-1")]

    # And means something again when there was time to beat, and no beat came
    living = asyncio.create_task(parts.heart.run())
    reaping = asyncio.create_task(parts.heart.reap_forever())
    await eventually_async(lambda: parts.workers() == ["node-a-1"])
    await end_tasks([living, reaping])


async def test_worker_that_its_server_forgot_is_reported_again(parts):
    # Given
    await parts.heart.beat()
    await parts.heart.beat()
    before = parts.forgotten
    # When the server of the version loses everything, and that of the registry does not
    client = fakeredis.FakeRedis(server=parts.server)
    client.delete(*client.keys("{model2:*"))
    assert parts.workers() == []
    await parts.heart.beat()
    # Then
    assert parts.workers() == ["node-a-1"]
    assert parts.forgotten == before + 1


@pytest.mark.parametrize("is_noticed", [True, False], ids=["beat failed", "in doubt"])
async def test_worker_that_a_server_that_took_over_lists_again_is_forgotten(parts, is_noticed):
    former = replace(WORKER, worker_id="node-a-0", state=WorkerState.FAILED)
    other = replace(WORKER, worker_id="node-b-0", node_id="node-b", state=WorkerState.FAILED)

    # Given
    await parts.heart.beat()
    await join(parts.queue, replace(NODE, node_id="node-b"))
    # When Redis was away, and has not heard that this node's worker had been forgotten
    if is_noticed:
        parts.server.connected = False
        with pytest.raises(redis.ConnectionError):
            await parts.heart.beat()
        parts.server.connected = True
    else:
        parts.heart.doubt()
    for listed in (former, other, replace(WORKER, state=WorkerState.LOADING)):
        await parts.queue.report(KEY, listed)
    await parts.heart.beat()
    # Then other nodes' workers are theirs to forget
    assert parts.workers() == ["node-a-1", "node-b-0"]
    assert parts.registry.workers(KEY)[0].state is WorkerState.READY


class Interrupted(NodeQueue):
    """Something happens while its next beat is on its way."""

    meanwhile = None

    async def beat(self, *arguments, **options):
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().beat(*arguments, **options)


async def test_worker_that_is_given_up_during_a_beat_stays_listed(parts):
    queue = Interrupted(parts.queue._client, int(DEAD_AFTER_S * 1000))
    parts.heart.queue = queue
    [record] = parts.heart.records()

    # Given
    await parts.heart.beat()
    # When
    queue.meanwhile = lambda: record.set_state(WorkerState.FAILED, error="no weights")
    await parts.heart.beat()
    # Then it does not count, and once its beat is old, no node takes it for dead
    client = fakeredis.FakeRedis(server=parts.server)
    assert not client.exists(VersionKeys.of(KEY).worker_beats)
    assert await parts.queue.dead_workers([KEY]) == []
    assert parts.workers() == ["node-a-1"]
