"""Submits, reads, cancels, retries and lists jobs in Redis; claims what receivers are to hear."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from redis.exceptions import OutOfMemoryError, ResponseError

from batching.models.spec import VersionKey
from batching.protocol import JOB, Wire
from batching.store import keys
from batching.store.background_tasks import BackgroundTasks, end_tasks
from batching.store.clients import at
from batching.store.held_connections import AsyncClient
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import (
    FIELDS,
    OPEN_INFERENCE,
    Job,
    JobStatus,
    Receiver,
    Webhook,
    read_version,
)
from batching.store.keys import VersionKeys, tag_of
from batching.store.records import rest_of_record
from batching.store.redis_errors import AWAY
from batching.store.scripts.loader import ordered_keys, script

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

MOST_TOGETHER = 256
# Positions behind more jobs are not looked up.
FARTHEST = 1000
# How long a key is kept until its request is accepted; a refused request may be sent again.
KEY_MS = 600_000
# Added to deadline and time of keeping, so that nothing of a job expires before the job itself.
SLACK_MS = 60_000
LOOK_S = 1.0  # between two reads of a server's state
REFUSED_S = 60.0  # between two tries to turn its append-only file on
FILE_S = 2.0  # at the end, for a file that has been begun
TOGETHER_S = 0.005  # for looks that share a round trip
MOST_ERROR_CHARS = 200
_POLL_S = 0.02


class JobRequest(NamedTuple):
    """Holds a job that is to be submitted. `ttl_ms` is from now to its deadline.

    `is_open_inference`: its client speaks the Open Inference Protocol. `is_keyed`: its id belongs
    to an idempotency key, so that others may submit it, too.
    """

    job_id: str
    wire: Wire
    ttl_ms: int
    keep_ms: int
    is_urgent: bool = False
    is_open_inference: bool = False
    receiver: Receiver | None = None
    is_keyed: bool = False

    @property
    def whole_ms(self) -> int:
        """Returns for how long anything of the job may exist."""
        return self.ttl_ms + self.keep_ms + SLACK_MS

    def to_arguments(self) -> list[str | int | bytes]:
        receiver = self.receiver
        return [
            self.job_id,
            rest_of_record(JOB, self.ttl_ms, 0, b"" if self.wire.body else self.wire.head),
            self.ttl_ms,
            self.keep_ms,
            "high" if self.is_urgent else "normal",
            OPEN_INFERENCE if self.is_open_inference else "",
            "" if receiver is None else msgspec.json.encode(receiver),
            "1" if receiver is not None and receiver.is_start_told else "",
        ]


class _RedisState(NamedTuple):
    """Holds the state of a Redis at a moment of the monotonic clock."""

    looked_s: float
    has_room: bool
    is_durable: bool


class _Together(Generic[Item, Outcome]):
    """Has what is asked of a version at the same moment share one call; one at a time.

    `call` returns an outcome for each item; its error is for all of them.
    """

    def __init__(
        self,
        call: Callable[[VersionKey, list[Item]], Awaitable[Sequence[Outcome]]],
        wait_s: float = 0.0,  # what comes in the same turn of the event loop goes along
    ) -> None:
        self._call = call
        self._wait_s = wait_s
        self._waiting: dict[VersionKey, list[tuple[Item, asyncio.Future[Outcome]]]] = {}
        self._tasks = BackgroundTasks()

    async def close(self) -> None:
        await self._tasks.close()
        for waiting in self._waiting.values():
            for _, future in waiting:
                future.cancel()

    async def ask(self, key: VersionKey, item: Item) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if key not in self._waiting:
            self._waiting[key] = []
            self._tasks.start(self._answer(key))
        self._waiting[key].append((item, future))
        return await future

    async def _answer(self, key: VersionKey) -> None:
        waiting = self._waiting[key]
        while waiting:
            await asyncio.sleep(self._wait_s)
            asking = waiting[:MOST_TOGETHER]
            outcomes: Sequence[Outcome | Exception]
            try:
                outcomes = await self._call(key, [item for item, _ in asking])
            except Exception as error:
                outcomes = [error] * len(asking)
            del waiting[: len(asking)]
            for (_, future), outcome in zip(asking, outcomes, strict=True):
                if future.done():  # its caller may have left
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        del self._waiting[key]


class JobStore:
    """Calls the scripts about jobs; raises redis' own errors. Lives on one event loop.

    In a cluster the broker may close a client that no call uses, so each call asks for its own.
    `most_waiting`: jobs of one version that may wait. `memory_share`: the share of `maxmemory`
    beyond which jobs are refused. `is_writing_file`: turns the server's append-only file on at the
    first job; requests need none, as they are submitted again.
    """

    def __init__(
        self,
        client: AsyncClient,
        most_waiting: int,
        memory_share: float = 1.0,
        *,
        is_writing_file: bool = False,
    ) -> None:
        self._client = client
        self._most_waiting = most_waiting
        self._memory_share = memory_share
        self._is_writing_file = is_writing_file
        self._writes = _Together(self._write)
        self._looks = _Together(self._read, TOGETHER_S)
        self._servers: dict[str, _RedisState] = {}  # by hash tag
        self._looking = asyncio.Lock()
        self._file: asyncio.Task[None] | None = None
        self._write_file_at_s = 0.0

    async def close(self) -> None:
        """Ends what is under way; no submit may be."""
        if self._file is not None:
            # Redis may be stopped next, and only what is in the file remains.
            await asyncio.wait({self._file}, timeout=FILE_S)
            await end_tasks([self._file])
        await self._writes.close()
        await self._looks.close()

    # --- submit

    async def submit(self, key: VersionKey, job: JobRequest) -> Job | SubmitCode:
        """Submits the job; returns it, or the code of its refusal.

        A call whose answer was lost may be repeated. Nothing is kept of a refused job; except, for
        some minutes, the version of a keyed one, as another submit of its id may be accepted.
        """
        server = await self._server(VersionKeys.of(key).tag)
        if not server.has_room:
            return SubmitCode.NO_MEMORY
        if (wire := job.wire).body:
            client, version_keys = self._of(key)
            value = b"".join((wire.head, wire.body, wire.tail))
            try:
                await client.set(version_keys.body_prefix + job.job_id, value, px=job.whole_ms)
            except OutOfMemoryError:
                return SubmitCode.NO_MEMORY
        if job.receiver is not None:
            # Before the job's first event.
            await _note_version(self._client, key, job.whole_ms)
        number, now_ms, before = await self._writes.ask(key, job)
        code = SubmitCode(number)
        if code is SubmitCode.KNOWN and (known := await self.find(job.job_id)) is not None:
            await self._keep_name(known)
            return known
        if code not in {SubmitCode.QUEUED, SubmitCode.KNOWN}:
            client, name = self._name_of(job.job_id)
            await (client.pexpire(name, KEY_MS) if job.is_keyed else client.unlink(name))
        if code is not SubmitCode.QUEUED:
            return code
        return Job(
            job_id=job.job_id,
            key=key,
            status=JobStatus.QUEUED,
            created_ms=now_ms,
            expires_ms=now_ms + job.ttl_ms + job.keep_ms,
            is_urgent=job.is_urgent,
            is_open_inference=job.is_open_inference,
            webhook=Webhook(job.receiver) if job.receiver else None,
            position=None if job.is_urgent or before > FARTHEST else before,
            is_durable=server.is_durable,
        )

    async def _write(
        self, key: VersionKey, jobs: Sequence[JobRequest]
    ) -> list[tuple[int, int, int]]:
        """Returns for each its code, Redis' time, and how many jobs waited before it."""
        version = json.dumps([*key])
        names: dict[AsyncClient, Any] = {}
        for job in jobs:
            client, name = self._name_of(job.job_id)
            if client not in names:
                names[client] = client.pipeline(transaction=False)
            names[client].set(name, version, px=job.whole_ms)
        arguments: list[Any] = [self._most_waiting]
        for job in jobs:
            arguments += job.to_arguments()
        try:
            for pipe in names.values():  # first, so that every job can be found by its id
                await pipe.execute()
            now_ms, *codes = await _run(self._client, "submit_jobs", key, arguments)
        except OutOfMemoryError:
            return [(SubmitCode.NO_MEMORY, 0, 0)] * len(jobs)
        return [
            (code, now_ms, before) for code, before in zip(codes[::2], codes[1::2], strict=True)
        ]

    async def take_key(self, digest: str, value: str) -> str | None:
        """Gives a key this value for some minutes, or returns the value that it has."""
        name = keys.idempotency_key(digest)
        before: Any = await at(self._client, tag_of(name)).set(
            name, value, px=KEY_MS, nx=True, get=True
        )
        return None if before is None else before.decode()

    async def keep_key(self, digest: str, ttl_ms: int) -> None:
        """Keeps the key for as long as its job exists."""
        name = keys.idempotency_key(digest)
        await at(self._client, tag_of(name)).pexpire(name, ttl_ms)

    # --- existing jobs

    async def find(self, job_id: str) -> Job | None:
        client, name = self._name_of(job_id)
        value = await client.get(name)
        key = None if value is None else read_version(value)
        return None if key is None else (await self._read(key, [job_id]))[0]

    async def look_again(self, job: Job) -> Job | None:
        """Reads the job again; returns None if it is gone.

        Looks at several jobs of a version share one round trip.
        """
        return await self._looks.ask(job.key, job.job_id)

    async def read_large(self, job: Job, attempt: str) -> bytes | None:
        client, version_keys = self._of(job.key)
        name = f"{version_keys.large_reply_prefix}{job.job_id}:{attempt}"
        return await client.get(name)  # type: ignore[return-value]  # bytes: nothing is decoded

    async def cancel(self, job_id: str) -> Job | None:
        """Cancels the job; if it has ended, deletes its result."""
        if (job := await self.find(job_id)) is None:
            return None
        await _run(self._client, "cancel_job", job.key, [job_id])
        return await self.look_again(job)

    async def retry(self, job: Job) -> SubmitCode:
        """Queues a job that did not succeed again, if its input is kept."""
        arguments = [job.job_id, self._most_waiting]
        code = SubmitCode(await _run(self._client, "retry_job", job.key, arguments))
        if code is SubmitCode.QUEUED and (again := await self.look_again(job)) is not None:
            await self._keep_name(again)
        return code

    async def newest(self, key: VersionKey, before_us: int, count: int) -> list[tuple[int, Job]]:
        """Returns up to `count` jobs of a version, the newest before this time, with times."""
        client, version_keys = self._of(key)
        while True:
            newest: list[Any] = await client.zrevrangebyscore(
                version_keys.job_index, f"({before_us}", "-inf", start=0, num=count, withscores=True
            )
            ids = [job_id.decode(errors="replace") for job_id, _ in newest]
            jobs = await self._read(key, ids)
            gone = [name for (name, _), job in zip(newest, jobs, strict=True) if job is None]
            if not gone:
                times_us = [int(score) for _, score in newest]
                return [(at_us, job) for at_us, job in zip(times_us, jobs, strict=True) if job]
            await client.zrem(version_keys.job_index, *gone)

    async def _read(self, key: VersionKey, job_ids: Sequence[str]) -> list[Job | None]:
        client, version_keys = self._of(key)
        async with client.pipeline(transaction=False) as pipe:
            pipe.time()
            for job_id in job_ids:
                pipe.hmget(version_keys.job_prefix + job_id, FIELDS)
                pipe.lpos(version_keys.job_queue, job_id, maxlen=FARTHEST)
            (seconds, micros), *answers = await pipe.execute()
        now_ms = seconds * 1000 + micros // 1000
        is_durable = (await self._server(version_keys.tag)).is_durable
        jobs: list[Job | None] = []
        for job_id, values, position in zip(job_ids, answers[::2], answers[1::2], strict=True):
            pairs = zip(FIELDS, values, strict=True)
            fields = {name: value for name, value in pairs if value is not None}
            try:
                job = Job.of(job_id, key, fields, now_ms)
                job = msgspec.structs.replace(job, position=position, is_durable=is_durable)
                jobs.append(job)
            except ValueError as error:
                if fields:
                    log.error("unreadable job=%s: %r", job_id, error)
                jobs.append(None)
        return jobs

    async def _keep_name(self, job: Job) -> None:
        """Keeps the job's id known for as long as the job exists."""
        client, name = self._name_of(job.job_id)
        await client.pexpireat(name, job.expires_ms + SLACK_MS)

    def _name_of(self, job_id: str) -> tuple[AsyncClient, str]:
        name = keys.job_version(job_id)
        return at(self._client, tag_of(name)), name

    def _of(self, key: VersionKey) -> tuple[AsyncClient, VersionKeys]:
        version_keys = VersionKeys.of(key)
        return at(self._client, version_keys.tag), version_keys

    # --- their servers

    async def _server(self, tag: str) -> _RedisState:
        """Returns the state of the server of this tag, at most LOOK_S old."""
        # Of many calls at a time, one asks.
        async with self._looking:
            server = self._servers.get(tag)
            if server is not None and server.looked_s + LOOK_S >= time.monotonic():
                return server
            info = await at(self._client, tag).info("memory", "persistence")
            limit_bytes = info.get("maxmemory", 0) * self._memory_share
            is_writing, now_s = info.get("aof_enabled") == 1, time.monotonic()
            is_due = self._file is None and self._write_file_at_s <= now_s
            if self._is_writing_file and not is_writing and is_due:
                # A server that refuses is not asked again for each job.
                self._write_file_at_s = now_s + REFUSED_S
                self._file = asyncio.create_task(self._write_file())
            server = self._servers[tag] = _RedisState(
                looked_s=now_s,
                has_room=not limit_bytes or info.get("used_memory", 0) < limit_bytes,
                # While the file is being begun, it does not have all jobs.
                is_durable=is_writing and self._file is None,
            )
        return server

    async def _write_file(self) -> None:
        """Turns the append-only file on while submits go on, and waits until it is complete."""
        try:
            await self._client.config_set("appendonly", "yes")
            info = await self._client.info("persistence")
            while info.get("aof_rewrite_in_progress") or info.get("aof_rewrite_scheduled"):
                await asyncio.sleep(_POLL_S)
                info = await self._client.info("persistence")
        except (ResponseError, *AWAY) as error:
            log.warning("jobs are not written down: %s", error)
            if not isinstance(error, ResponseError):
                self._write_file_at_s = 0.0
        finally:
            self._servers.clear()
            self._file = None


class WebhookOutcome(StrEnum):
    """Says how a try ended; after the last two outcomes the event is due again."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"
    PENDING = "pending"
    BUSY = "busy"  # no try was made: too many are under way to this receiver


@dataclass(frozen=True, slots=True)
class Event:
    """Holds an event for a receiver: a job's start or its final status.

    `submitted_ms` tells the ends of a retried job apart.
    """

    key: VersionKey
    job_id: str
    name: str
    tries: int
    submitted_ms: int


class WebhookStore:
    """Calls the scripts; raises redis' own errors. Lives on one event loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def claim(self, count: int, lease_ms: int) -> list[Event]:
        """Returns up to `count` events that are due; for `lease_ms` they are this sender's."""
        events: list[Event] = []
        versions = await self._versions()
        random.shuffle(versions)  # many events of one version must not hold up the others
        for key in versions:
            if len(events) == count:
                break
            arguments = [count - len(events), lease_ms]
            answer = await _run(self._client, "claim_webhooks", key, arguments)
            values = iter([str(value, "utf-8", "replace") for value in answer])
            quads = zip(values, values, values, values, strict=True)
            for job_id, name, tries, submitted_ms in quads:
                events.append(Event(key, job_id, name, int(tries), int(submitted_ms)))
        return events

    async def end(
        self, event: Event, outcome: WebhookOutcome, again_ms: int = 0, error: str = ""
    ) -> None:
        """Notes how a try ended, and after how long to try again."""
        arguments = [event.job_id, event.name, outcome, again_ms, error[:MOST_ERROR_CHARS]]
        await _run(self._client, "end_webhook", event.key, arguments)

    async def _versions(self) -> list[VersionKey]:
        """Returns the versions that have jobs with webhooks, including unregistered ones."""
        home = at(self._client, keys.HOME)
        seconds, _ = await home.time()
        names: list[Any] = await home.zrangebyscore(keys.WEBHOOK_VERSIONS, seconds * 1000, "+inf")
        if names:
            await home.zremrangebyscore(keys.WEBHOOK_VERSIONS, "-inf", f"({seconds * 1000}")
        return [key for name in names if (key := read_version(name)) is not None]


async def _note_version(client: AsyncClient, key: VersionKey, whole_ms: int) -> None:
    """Lists this version for senders, for as long as its job may exist."""
    home = at(client, keys.HOME)
    seconds, _ = await home.time()
    async with home.pipeline(transaction=False) as pipe:
        pipe.zadd(keys.WEBHOOK_VERSIONS, {json.dumps([*key]): seconds * 1000 + whole_ms}, gt=True)
        pipe.pttl(keys.WEBHOOK_VERSIONS)
        _, left_ms = await pipe.execute()
    if left_ms < whole_ms:
        await home.pexpire(keys.WEBHOOK_VERSIONS, whole_ms)


async def _run(client: AsyncClient, verb: str, key: VersionKey, arguments: Sequence[Any]) -> Any:
    version_keys = VersionKeys.of(key)
    call = script(at(client, version_keys.tag), verb)
    return await call(ordered_keys(verb, version_keys), arguments)
