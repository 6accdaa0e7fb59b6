"""Keeps the model registry: versions, how many workers each node should run, and live nodes.

A model is one JSON record in one hash. A version's configuration, which `submit` reads, lies beside
its queue.
"""

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import redis

from batching.errors import RecordUnreadable, VersionInUse, VersionNotFound
from batching.metrics import Series
from batching.models.entry import ModelEntry, existing, pick_version, specs_of, still_registered
from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import NodeStatus, QueueStatus, StoreStatus, WorkerStatus
from batching.store import keys
from batching.store.clients import at
from batching.store.held_connections import AsyncClient, Client
from batching.store.keys import UNREGISTERED_TTL_MS, VersionKeys
from batching.store.records import UNREADABLE, RecordReader, ids_of
from batching.store.redis_errors import REFUSED, telling_unavailable
from batching.store.scripts.loader import ordered_keys, script

CONFIRMATION_S = 5.0
SILENCE_S = 2.0


class Registry:
    """Reads and changes the registry.

    Raises StoreUnavailable when Redis does not answer, and ModelNotFound or VersionNotFound where a
    version is named that is not registered.
    """

    def __init__(self, client: Client, *, dead_after_s: float = 3.0) -> None:
        self._client = client
        self._dead_after_ms = int(dead_after_s * 1000)
        self._living = script(client, "living")
        self._measure = script(client, "measure")
        self._swap = script(client, "swap_model")
        self._entries = RecordReader("model", ModelEntry.from_json)
        self._workers = RecordReader("worker", WorkerStatus.from_json)
        self._nodes = RecordReader("node", NodeStatus.from_json)
        self._counters = RecordReader("counter", int)

    def get(self, model_name: str) -> ModelEntry | None:
        """Returns the model's entry, or None; raises RecordUnreadable if it is garbage."""
        with telling_unavailable():
            text: Any = self._client.hget(keys.MODELS, model_name)
        return _entry(model_name, text)

    def snapshot(self, former: Mapping[str, ModelEntry] | None = None) -> dict[str, ModelEntry]:
        """Returns the whole registry; an unreadable model is as in `former`, or left out."""
        with telling_unavailable():
            records = self._client.hgetall(keys.MODELS)
        return self._entries.read(records, former)

    def specs(self) -> list[ModelSpec]:
        return specs_of(self.snapshot().values())

    def resolve(self, model_name: str, model_version: str | None) -> ModelSpec:
        return pick_version(self.get(model_name), model_name, model_version)

    def create(self, spec: ModelSpec) -> None:
        """Registers the version, or raises Conflict; a model's first version is its default."""

        def change(entry: ModelEntry | None) -> ModelEntry:
            if entry is None:
                return ModelEntry(spec.model_version, {spec.model_version: spec})
            return entry.registering(spec)

        # Before, so that no version stays without a configuration; afterwards, because the removal
        # of an earlier version of that name may still have been under way.
        self._open_queue(spec)
        self._change(spec.model_name, change)
        self._open_queue(spec, is_new=True)

    def restore(self, entries: Iterable[ModelEntry]) -> None:
        """Registers versions again that Redis has lost; does not change the others."""
        for entry in entries:
            specs = list(entry.versions.values())
            for spec in specs:
                self._open_queue(spec)
            self._change(specs[0].model_name, entry.completed_by)

    def forget(self) -> None:
        """Forgets all that is registered, but no jobs: these wait until their version is back.

        Only for when no node runs: nodes would answer what waits for a removed version.
        """
        specs = self.specs()
        with telling_unavailable():
            self._client.delete(keys.MODELS, keys.STARTED)
        for spec in specs:
            self.close_queue(spec.key)

    def repair(self, entries: Iterable[ModelEntry]) -> None:
        """Writes missing configurations of these versions, if they are still registered."""
        for spec in specs_of(entries):
            self._repair(spec)

    def epoch(self) -> str:
        """Returns an id that lasts until Redis is emptied; "" then, until `mark` sets another."""
        with telling_unavailable():
            epoch: Any = self._client.get(keys.EPOCH)
        return epoch.decode() if epoch else ""

    def mark(self) -> str:
        """Returns the epoch, and sets one if there is none.

        It tells an emptied Redis from an empty registry.
        """
        if epoch := self.epoch():
            return epoch  # at maxmemory even a SET that would change nothing is refused
        with telling_unavailable():
            self._client.set(keys.EPOCH, uuid.uuid4().hex, nx=True)
        return self.epoch()

    def is_lost(self) -> bool:
        return not self.epoch()

    def scale(self, key: VersionKey, min_worker: int, max_worker: int) -> ModelSpec:

        def change(entry: ModelEntry | None) -> ModelEntry:
            spec = pick_version(entry, *key)
            return existing(entry, key.model_name).with_spec(spec.scaled(min_worker, max_worker))

        scaled = pick_version(self._change(key.model_name, change), *key)
        # In a cluster a server may have lost it; without workers no node notices.
        self._repair(scaled)
        return scaled

    def set_default(self, model_name: str, model_version: str) -> None:

        def change(entry: ModelEntry | None) -> ModelEntry:
            known = existing(entry, model_name)
            if model_version not in known.versions:
                raise VersionNotFound(
                    f"Model version {model_version} does not exist for model {model_name}"
                )
            return replace(known, default_version=model_version)

        self._change(model_name, change)

    def remove(self, key: VersionKey, *, only: ModelSpec | None = None) -> None:
        """Removes the version: nodes stop its workers, submits are refused.

        With `only`, removes just this failed registration, and no other of that name; if it is the
        default, another version becomes the default. Otherwise a default raises VersionInUse.
        """

        def change(entry: ModelEntry | None) -> ModelEntry | None:
            known = existing(entry, key.model_name)
            pick_version(known, *key)
            if only is not None:
                still_registered(known, only)
            elif key.model_version == known.default_version and len(known.versions) > 1:
                raise VersionInUse(f"Cannot remove default version for model {key.model_name}")
            return known.without(key.model_version)

        self._change(key.model_name, change)
        # Submits are refused from now on; nodes answer the requests that still wait.
        self.close_queue(key)

    def remove_unreadable(self, model_name: str) -> None:
        """Removes an unreadable record, and no other; nodes then end the model's workers."""
        with telling_unavailable():
            text: Any = self._client.hget(keys.MODELS, model_name)
            try:
                _entry(model_name, text)
            except RecordUnreadable:
                self._swap(keys=[keys.MODELS], args=[model_name, text, "", keys.CHANGES])

    def close_queue(self, key: VersionKey) -> None:
        """Makes the version refuse submits, unless it is registered.

        Its other keys get a TTL: nodes delete them sooner, but no node may be left.
        """
        names = VersionKeys.of(key)
        client = at(self._client, names.tag)
        with telling_unavailable():
            client.delete(names.config)
            with client.pipeline(transaction=False) as pipe:
                for name in names.permanent() - {names.config}:
                    pipe.pexpire(name, UNREGISTERED_TTL_MS)
                pipe.execute()
        if again := self._versions_of(key.model_name).get(key.model_version):
            # It was registered again before its configuration was deleted.
            self._open_queue(again, is_new=True)

    def _open_queue(self, spec: ModelSpec, *, is_new: bool = False) -> None:
        """Writes the version's configuration; unless it `is_new`, only if there is none."""
        names = VersionKeys.of(spec.key)
        client = at(self._client, names.tag)
        with telling_unavailable():
            # Read first: at maxmemory even an HSETNX that would change nothing is refused.
            if not is_new and client.hexists(names.config, "max_queue"):
                return
            with client.pipeline(transaction=False) as pipe:
                (pipe.hset if is_new else pipe.hsetnx)(
                    names.config, "max_queue", str(spec.job_queue_size)
                )
                # An earlier version of that name may have been unregistered a moment ago.
                for name in names.permanent() - {names.config}:
                    pipe.persist(name)
                pipe.execute()

    def was_started(self, entry: str) -> bool:
        """Returns whether this entry of `load_models`, or snapshot, was registered before."""
        with telling_unavailable():
            return bool(self._client.hexists(keys.STARTED, entry))

    def note_started(self, entry: str) -> None:
        """Notes that the entry was registered, so that no restart registers it again."""
        with telling_unavailable():
            self._client.hset(keys.STARTED, entry, 1)

    def workers(self, key: VersionKey, alive: Set[str] | None = None) -> list[WorkerStatus]:
        """Returns the workers of live nodes, sorted by node and slot.

        `alive`: from `alive_nodes()`; spares a round trip.
        """
        version_keys = VersionKeys.of(key)
        with telling_unavailable():
            records = at(self._client, version_keys.tag).hgetall(version_keys.workers)
        if alive is None:
            alive = self.alive_nodes() if records else frozenset()
        statuses = self._workers.read(records).values()
        return sorted(
            (status for status in statuses if status.node_id in alive),
            key=lambda status: (status.node_id, status.slot, status.started_at),
        )

    def nodes(self) -> list[NodeStatus]:
        with telling_unavailable():
            records = self._client.hgetall(keys.NODE_INFO)
        alive = self.alive_nodes()
        nodes = self._nodes.read(records)
        return [node for node_id, node in sorted(nodes.items()) if node_id in alive]

    def alive_nodes(self) -> set[str]:
        with telling_unavailable():
            [members] = self._living(keys=[keys.NODES], args=[self._dead_after_ms, "alive"])
        return set(ids_of(members))

    def require_writable(self) -> None:
        """Raises StoreUnavailable if Redis takes no writes, and so no beats; changes nothing."""
        with telling_unavailable():
            self._client.hdel(keys.NODE_INFO, "")

    def queue(self, spec: ModelSpec) -> QueueStatus:
        """Returns how many requests and jobs wait, and the counters since registration."""
        names = VersionKeys.of(spec.key)
        with telling_unavailable():
            waiting, open_requests, oldest_us, jobs, oldest_job_us, *counters = self._measure(
                keys=ordered_keys("measure", names),
                client=at(self._client, names.tag),
            )
        pairs = zip(counters[::2], counters[1::2], strict=True)
        return QueueStatus(
            waiting=waiting,
            capacity=spec.job_queue_size,
            open_requests=open_requests,
            oldest_age_s=int(oldest_us) / 1e6,
            jobs=jobs,
            oldest_job_age_s=int(oldest_job_us) / 1e6,
            counters=self._counters.read(dict(pairs)),
        )

    @contextlib.contextmanager
    def changes(self) -> Iterator[Callable[[float], bool]]:
        """Yields `wait(timeout_s)`: true once the registry or a worker's state has changed."""
        client: Any = self._client
        with telling_unavailable(), client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe(keys.CHANGES)
            # Reads the confirmation: before it a change could be missed, and it would end `wait`.
            listener.get_message(timeout=CONFIRMATION_S)

            def wait(timeout_s: float) -> bool:
                with telling_unavailable():
                    return listener.get_message(timeout=timeout_s) is not None

            yield wait

    def announce(self, model_name: str) -> None:
        with telling_unavailable():
            self._client.publish(keys.CHANGES, model_name)

    def store(self) -> StoreStatus:
        """Returns the state of Redis; in a cluster, of the server that answers."""
        started_s = time.perf_counter()
        with telling_unavailable():
            self._client.ping()
            round_trip_s = time.perf_counter() - started_s
            info = self._client.info("memory", "clients", "stats")
        return StoreStatus(
            round_trip_s=round_trip_s,
            memory_used_bytes=int(info.get("used_memory", 0)),
            memory_limit_bytes=int(info.get("maxmemory", 0)),
            clients=int(info.get("connected_clients", 0)),
            commands=int(info.get("total_commands_processed", 0)),
            evicted_keys=int(info.get("evicted_keys", 0)),
        )

    def _versions_of(self, model_name: str) -> Mapping[str, ModelSpec]:
        entry = self.get(model_name)
        return entry.versions if entry else {}

    def _repair(self, spec: ModelSpec) -> None:
        self._open_queue(spec)
        if spec.model_version not in self._versions_of(spec.model_name):
            # It was removed meanwhile, perhaps before its configuration was written here.
            self.close_queue(spec.key)

    def _change(
        self, model_name: str, change: Callable[[ModelEntry | None], ModelEntry | None]
    ) -> ModelEntry | None:
        with telling_unavailable():
            while True:
                text: Any = self._client.hget(keys.MODELS, model_name)
                entry = change(_entry(model_name, text))
                successor = "" if entry is None else entry.to_json()
                arguments = [model_name, text or "", successor, keys.CHANGES]
                if self._swap(keys=[keys.MODELS], args=arguments):
                    return entry


def _entry(model_name: str, text: bytes | None) -> ModelEntry | None:
    try:
        return ModelEntry.from_json(text) if text is not None else None
    except UNREADABLE as error:
        raise RecordUnreadable(
            f"What is registered as {model_name} cannot be read. Unregister the model as a whole, "
            "and register it again."
        ) from error


def read_metrics(client: Client, key: VersionKey) -> dict[Series, float]:
    """Returns the measurements of this version's handlers; raises redis' own errors."""
    values: dict[Series, float] = {}
    names = VersionKeys.of(key)
    for field, value in at(client, names.tag).hgetall(names.metrics).items():
        with contextlib.suppress(ValueError):  # Redis is a socket that others may write to
            values[Series.from_field(field)] = float(value)
    return values


async def changed_models(
    client: AsyncClient, silence_s: float = SILENCE_S
) -> AsyncGenerator[str | None, None]:
    """Yields None once it listens, then the name of each model that has changed.

    After `silence_s` it asks the server for a sign of life: otherwise it would listen for ever to a
    server that is frozen or cut off, while its successor announces changes to others.

    Raises:
        RedisError, OSError: the connection is broken; changes may have been missed.
    """
    async with client.pubsub() as channel:
        await channel.subscribe(keys.CHANGES)
        if await channel.get_message(timeout=silence_s) is None:
            raise redis.TimeoutError("no answer on the channel of changes")
        yield None
        is_asked = False
        while True:
            try:
                message: Any = await channel.get_message(timeout=silence_s)
            except REFUSED:
                # A server that cannot write to its disk refuses PINGs, but lives and announces.
                message = {"type": "pong"}
            if message is None:
                if is_asked:
                    raise redis.TimeoutError("no answer on the channel of changes")
                await channel.ping()
            elif message["type"] == "message":
                yield message["data"].decode(errors="replace")
            elif message["type"] == "subscribe":
                raise redis.ConnectionError("the channel of changes was broken meanwhile")
            is_asked = message is None
