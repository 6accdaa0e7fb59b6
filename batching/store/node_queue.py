"""Makes the node's calls: beat, report, reclaim, refuse, and who is dead."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batching.models.entry import ModelEntry, specs_of
from batching.models.spec import VersionKey
from batching.models.statuses import NodeStatus, WorkerStatus
from batching.store import keys
from batching.store.clients import at, is_cluster
from batching.store.held_connections import AsyncClient
from batching.store.keys import LEASE_TTL_MS, REPLY_TTL_MS, VersionKeys
from batching.store.records import RecordReader, ids_of
from batching.store.scripts.loader import ordered_keys, script

CALL_S = 1.0
# So that no call holds Redis up for long.
VERSIONS_AT_ONCE = AT_ONCE = 256


class ReclaimMode(StrEnum):
    """Why a worker's requests are taken back."""

    DEAD = "dead"  # its node went silent
    CRASHED = "crashed"  # its node saw it die
    RELEASED = "released"  # it leaves in good order
    RECOVERED = "recovered"  # it lives on, but the answer to its claim was lost


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    """Tells what Redis said to a beat."""

    is_new_node: bool
    # By version, how many of the workers that beat were not known before.
    added: Mapping[VersionKey, int]
    # For how long each quiet node, and each quiet worker of these versions, has been silent.
    silent_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class GoneNode:
    """A node that was silent for too long."""

    node_id: str
    hostname: str
    silent_s: float


class NodeQueue:
    """Calls the scripts; raises redis' own errors."""

    def __init__(
        self,
        client: AsyncClient,
        dead_after_ms: int,
        max_attempts: int = 2,
        *,
        call_s: float = CALL_S,
    ) -> None:
        self._call_s = call_s
        self._client = client
        self._dead_after_ms = dead_after_ms
        self._max_attempts = max_attempts
        verbs = ("beat", "reclaim", "refuse", "living", "report")
        self._scripts = {verb: script(client, verb) for verb in verbs}
        self._entries = RecordReader("model", ModelEntry.from_json)
        self._nodes = RecordReader("node", NodeStatus.from_json)

    async def describe(self, node: NodeStatus) -> None:
        await self._scripts["report"]([keys.NODE_INFO], [node.node_id, node.to_json()])

    async def count_control_jobs(self) -> int:
        """Returns how many control jobs wait for a node."""
        # In a cluster only clients for RQ know its own names.
        prefix = f"{keys.HOME}:" if is_cluster(self._client) else ""
        return int(await self._client.llen(f"{prefix}rq:queue:{keys.CONTROL_QUEUE}"))

    async def leave(self, node_id: str) -> None:
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.zrem(keys.NODES, node_id)
            pipe.hdel(keys.NODE_INFO, node_id)
            await pipe.execute()

    async def together(self, calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
        """Makes all of these calls; raises the first error of one of them.

        On one server they are made one after the other, until one fails. In a cluster all at once,
        with little time for each, as the server of one may be away while those of others are not.
        """
        if not is_cluster(self._client):
            for call in calls:
                await call()
            return
        bounded = [asyncio.wait_for(call(), self._call_s) for call in calls]
        for outcome in await asyncio.gather(*bounded, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def groups(self, versions: Iterable[VersionKey]) -> list[list[VersionKey]]:
        """Returns the versions in groups, each for one call; the first may be about nodes, too.

        In a cluster a call has the keys of one slot: those of one version, or of the nodes. On a
        single server, a call for each version would wake Redis and the node needlessly often.
        """
        known = list(versions)
        if is_cluster(self._client):
            return [[], *([key] for key in known)]
        size = VERSIONS_AT_ONCE
        return [known[start : start + size] for start in range(0, max(1, len(known)), size)]

    async def beat(
        self,
        workers: Mapping[VersionKey, Sequence[str]],
        node_id: str | None = None,
        *,
        quiet_s: float | None = None,
    ) -> BeatAnswer:
        """Beats for the node and these workers, and renews their leases; restores a lost wakeup.

        Args:
            workers: of one of `groups`; a version without any is there for who is silent.
            node_id: with the first group only.
            quiet_s: others count as quiet after this silence; by default, when they count as dead.
        """
        quiet_ms = self._dead_after_ms if quiet_s is None else int(quiet_s * 1000)
        names: list[str] = []
        arguments: list[int | str] = [LEASE_TTL_MS, quiet_ms]
        if node_id is not None:
            names.append(keys.NODES)
            arguments += [0, 1, node_id]
        for key, worker_ids in workers.items():
            version_keys = VersionKeys.of(key)
            names.append(version_keys.worker_beats)
            arguments += [len(worker_ids), len(worker_ids), *worker_ids]
            if worker_ids:
                names += [version_keys.lease_prefix + worker_id for worker_id in worker_ids]
                names += [version_keys.queue, version_keys.suspects, version_keys.wakeups]
                names += [version_keys.ingress_beats, version_keys.job_queue]
        client = self._of_group(workers) if workers else self._client
        silent_ms, *added = await self._scripts["beat"](names, arguments, client=client)
        is_new_node = node_id is not None and added.pop(0) > 0
        silent_s = [milliseconds / 1000 for milliseconds in silent_ms]
        return BeatAnswer(is_new_node, dict(zip(workers, added, strict=True)), silent_s)

    async def forget_unheard(self) -> None:
        """Forgets nodes that have no beat: they died when no other node was there to notice.

        After a day the last beat is dropped, too.
        """
        # In this order: a node that joins meanwhile beats before it is listed.
        listed: list[Any] = await self._client.hkeys(keys.NODE_INFO)
        heard = await self._client.zrangebyscore(keys.NODES, "-inf", "+inf")
        unheard = [name for name in listed if name not in heard]
        await self.forget_nodes(name.decode(errors="replace") for name in unheard)

    async def dead_nodes(self) -> list[str]:
        arguments = [self._dead_after_ms, "dead"]
        [members] = await self._scripts["living"]([keys.NODES], arguments)
        return ids_of(members)

    async def dead_workers(self, versions: Sequence[VersionKey]) -> list[tuple[VersionKey, str]]:
        """Returns the workers that have been silent for too long, of versions of one group."""
        names = [VersionKeys.of(key).worker_beats for key in versions]
        arguments, client = [self._dead_after_ms, "dead"], self._of_group(versions)
        dead = await self._scripts["living"](names, arguments, client=client)
        return [
            (key, worker_id)
            for key, members in zip(versions, dead, strict=True)
            for worker_id in ids_of(members)
        ]

    async def report(self, key: VersionKey, status: WorkerStatus) -> None:
        version_keys, client = self._of(key)
        arguments = [status.worker_id, status.to_json(), keys.CHANGES, key.model_name]
        await self._scripts["report"]([version_keys.workers], arguments, client=client)

    async def forget(self, key: VersionKey, worker_id: str) -> None:
        """Takes a worker that owns nothing any more off the lists."""
        version_keys, client = self._of(key)
        async with client.pipeline(transaction=False) as pipe:
            pipe.zrem(version_keys.worker_beats, worker_id)
            pipe.hdel(version_keys.workers, worker_id)
            pipe.publish(keys.CHANGES, key.model_name)
            await pipe.execute()

    async def listed_workers(self, key: VersionKey, node_id: str) -> list[str]:
        """Returns the workers of this node whose state was published."""
        version_keys, client = self._of(key)
        names: list[Any] = await client.hkeys(version_keys.workers)
        worker_ids = [name.decode(errors="replace") for name in names]
        return [worker_id for worker_id in worker_ids if worker_id.rpartition("-")[0] == node_id]

    async def hide(self, key: VersionKey, worker_id: str) -> None:
        """Stops counting the worker as one that can serve; its status stays visible."""
        version_keys, client = self._of(key)
        await client.zrem(version_keys.worker_beats, worker_id)

    async def reclaim(
        self, key: VersionKey, worker_id: str, mode: ReclaimMode, reason: str = "worker_crashed"
    ) -> int | None:
        """Takes a worker's requests back; those without an attempt left are answered with `reason`.

        Returns how many it owned; None if it is alive, and nothing was taken from it.
        """
        version_keys, client = self._of(key)
        names = ordered_keys("reclaim", version_keys, version_keys.lease_prefix + worker_id)
        limits = (self._dead_after_ms, self._max_attempts)
        arguments = [worker_id, mode, *limits, reason, AT_ONCE, REPLY_TTL_MS]
        total: int = 0
        while True:
            again, *more = await self._scripts["reclaim"](names, arguments, client=client)
            if again < 0:
                return None
            answered, left = more
            total += again + answered
            if left == 0:
                return total

    async def refuse_waiting(self, key: VersionKey, reason: str) -> int:
        """Answers all waiting requests with `reason`, unless a worker lives; returns how many."""
        version_keys, client = self._of(key)
        names = ordered_keys("refuse", version_keys)
        arguments = [reason, AT_ONCE, REPLY_TTL_MS, self._dead_after_ms]
        total: int = 0
        while True:
            refused, left = await self._scripts["refuse"](names, arguments, client=client)
            total += refused
            if left == 0:
                return total

    async def is_staffed(self, key: VersionKey) -> bool:
        """Returns whether the version has a worker, or one whose node may report it again."""
        version_keys, client = self._of(key)
        if await client.zcard(version_keys.worker_beats) > 0:
            return True
        worker_ids: list[Any] = await client.hkeys(version_keys.workers)
        nodes = await self._client.zrangebyscore(keys.NODES, "-inf", "+inf") if worker_ids else []
        return any(worker_id.rpartition(b"-")[0] in nodes for worker_id in worker_ids)

    async def bury(self, key: VersionKey) -> None:
        names, client = self._of(key)
        await client.delete(names.counters, names.metrics, names.ingress_beats, names.workers)

    async def forget_nodes(self, node_ids: Iterable[str]) -> list[GoneNode]:
        """Takes dead nodes and their workers off the lists; returns those that it removed."""
        dead = frozenset(node_ids)
        if dead:
            await self._forget_workers_of(dead)
        gone = []
        for node_id in dead:
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.time()
                pipe.zscore(keys.NODES, node_id)
                pipe.hget(keys.NODE_INFO, node_id)
                pipe.zrem(keys.NODES, node_id)
                pipe.hdel(keys.NODE_INFO, node_id)
                (second, micros), beat_ms, record, is_removed, _ = await pipe.execute()
            if is_removed:
                silent_s = second + micros / 1e6 - beat_ms / 1000
                status = self._nodes.read({node_id.encode(): record or b""}).get(node_id)
                hostname = "unknown" if status is None else status.hostname
                gone.append(GoneNode(node_id, hostname, silent_s))
        return gone

    async def _forget_workers_of(self, dead: frozenset[str]) -> None:
        # Hidden workers do not beat, so that they would not be found dead.
        of_dead = frozenset(node_id.encode() for node_id in dead)
        records = await self._client.hgetall(keys.MODELS)
        for spec in specs_of(self._entries.read(records).values()):
            version_keys, client = self._of(spec.key)
            worker_ids: list[Any] = await client.hkeys(version_keys.workers)
            gone = [name for name in worker_ids if name.rpartition(b"-")[0] in of_dead]
            if gone:
                await client.hdel(version_keys.workers, *gone)

    def _of(self, key: VersionKey) -> tuple[VersionKeys, AsyncClient]:
        """Returns the keys of this version, and the client for them."""
        version_keys = VersionKeys.of(key)
        return version_keys, at(self._client, version_keys.tag)

    def _of_group(self, versions: Iterable[VersionKey]) -> AsyncClient:
        return self._of(next(iter(versions)))[1]
