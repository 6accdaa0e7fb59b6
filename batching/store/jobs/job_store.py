"""Submits, reads, cancels, retries and lists jobs in Redis."""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from batching.models.spec import VersionKey
from batching.protocol import JOB, Wire
from batching.store import keys
from batching.store.background_tasks import BackgroundTasks, end_tasks
from batching.store.clients import at, is_cluster
from batching.store.held_connections import AsyncClient, AsyncHeldConnection, Command, packed
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
from batching.store.jobs.webhook_store import note_version
from batching.store.keys import VersionKeys, tag_of
from batching.store.records import rest_of_record
from batching.store.redis_errors import AWAY
from batching.store.scripts import loader as scripts

log = logging.getLogger(__name__)

SUBMIT_AT_ONCE = 256
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
_POLL_S = 0.02

_CODES = {code.value: code for code in SubmitCode}  # calling the enumeration is slow


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


class _Answer(NamedTuple):
    """Holds the answer to a submit: Redis' time, and how many jobs waited before this one."""

    code: SubmitCode
    now_ms: int = 0
    before: int = 0


class _RedisState(NamedTuple):
    """Holds the state of a Redis at a moment of the monotonic clock."""

    looked_s: float
    has_room: bool
    is_durable: bool


_NO_MEMORY = _Answer(SubmitCode.NO_MEMORY)


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
        self._scripts = {
            verb: scripts.script(client, verb)
            for verb in ("submit_jobs", "retry_job", "cancel_job")
        }
        self._connection = AsyncHeldConnection(client)
        self._pending: dict[VersionKey, list[tuple[JobRequest, asyncio.Future[_Answer]]]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._looks: dict[VersionKey, dict[str, asyncio.Future[Job | None]]] = {}
        self._looked_for: set[asyncio.Future[Job | None]] = set()
        self._background = BackgroundTasks()
        self._servers: dict[str, _RedisState] = {}  # by hash tag
        self._looking = asyncio.Lock()
        self._file: asyncio.Task[None] | None = None
        self._write_file_at_s = 0.0

    async def close(self) -> None:
        """Closes its own connection; no submit may be under way."""
        if self._writing is not None:
            await self._writing
        if self._file is not None:
            # Redis may be stopped next, and only what is in the file remains.
            await asyncio.wait({self._file}, timeout=FILE_S)
            await end_tasks([self._file])
        await self._background.close()
        for future in [*self._looked_for]:
            future.cancel()
        await self._connection.close()

    # --- submit

    async def submit(self, key: VersionKey, job: JobRequest) -> Job | SubmitCode:
        """Submits the job; returns it, or the code of its refusal.

        A call whose answer was lost may be repeated. Nothing is kept of a refused job; except, for
        some minutes, the version of a keyed one, as another submit of its id may be accepted.
        """
        server = await self._server(VersionKeys.of(key).tag)
        if not server.has_room:
            return SubmitCode.NO_MEMORY
        is_due = self._file is None and self._write_file_at_s <= time.monotonic()
        if self._is_writing_file and not server.is_durable and is_due:
            # A server that refuses is not asked again for each job.
            self._write_file_at_s = time.monotonic() + REFUSED_S
            self._file = asyncio.create_task(self._write_file())
        answer = await self._write_one(key, job)
        if answer.code is SubmitCode.KNOWN and (known := await self.find(job.job_id)) is not None:
            await self._keep_name(known)
            return known
        if answer.code is not SubmitCode.QUEUED:
            return answer.code
        return Job(
            job_id=job.job_id,
            key=key,
            status=JobStatus.QUEUED,
            created_ms=answer.now_ms,
            expires_ms=answer.now_ms + job.ttl_ms + job.keep_ms,
            is_urgent=job.is_urgent,
            is_open_inference=job.is_open_inference,
            webhook=Webhook(job.receiver) if job.receiver else None,
            position=None if job.is_urgent or answer.before > FARTHEST else answer.before,
            is_durable=server.is_durable,
        )

    async def _write_one(self, key: VersionKey, job: JobRequest) -> _Answer:
        """Writes the job, in one call with others that come now."""
        if (wire := job.wire).body:
            client, version_keys = self._of(key)
            value = b"".join((wire.head, wire.body, wire.tail))
            try:
                await client.set(version_keys.body_prefix + job.job_id, value, px=job.whole_ms)
            except OutOfMemoryError:
                return _NO_MEMORY
        if job.receiver is not None:
            # Before the job's first event.
            await note_version(self._client, key, job.whole_ms)
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._pending.setdefault(key, []).append((job, future))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        answer = await future
        if answer.code not in {SubmitCode.QUEUED, SubmitCode.KNOWN}:
            client, name = self._name_of(job.job_id)
            await (client.pexpire(name, KEY_MS) if job.is_keyed else client.unlink(name))
        return answer

    async def _write_all(self) -> None:
        """Writes until nothing is pending; passes errors on to the submits."""
        try:
            while self._pending:
                await asyncio.sleep(0)  # jobs that arrive in the same turn of the loop go along
                key, waiting = next(iter(self._pending.items()))
                batch = waiting[:SUBMIT_AT_ONCE]
                del waiting[:SUBMIT_AT_ONCE]
                if not waiting:
                    del self._pending[key]
                answers: Sequence[_Answer | Exception]
                try:
                    answers = await self._write(key, [job for job, _ in batch])
                except Exception as error:
                    answers = [error] * len(batch)
                for (_, future), answer in zip(batch, answers, strict=True):
                    if future.done():  # its caller may have left
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._writing = None

    async def _write(self, key: VersionKey, jobs: Sequence[JobRequest]) -> list[_Answer]:
        version = json.dumps([*key])
        # First, so that every job can be found by its id.
        names: list[Command] = [
            ("SET", keys.job_version(job.job_id), version, "PX", job.whole_ms) for job in jobs
        ]
        arguments = [argument for job in jobs for argument in job.to_arguments()]
        *named, answer = await self._exchange(key, names, [self._most_waiting, *arguments])
        if isinstance(answer, OutOfMemoryError):
            return [_NO_MEMORY] * len(jobs)
        if isinstance(answer, Exception):
            raise answer
        now_ms, *codes = answer
        pairs = zip(codes[::2], codes[1::2], strict=True)
        outcomes = [_Answer(_CODES[code], now_ms, before) for code, before in pairs]
        for number, failure in enumerate(named):
            if isinstance(failure, Exception) and outcomes[number].code is SubmitCode.QUEUED:
                # Nobody could find this job: memory was full, and then was not.
                await self._run("cancel_job", key, [jobs[number].job_id])
                if not isinstance(failure, OutOfMemoryError):
                    raise failure
                outcomes[number] = _NO_MEMORY
        return outcomes

    async def _exchange(
        self, key: VersionKey, names: Sequence[Command], arguments: Sequence[str | int | bytes]
    ) -> list[Any]:
        """Returns the answers to these commands and the script's; some may be errors."""
        if is_cluster(self._client):  # the keys are on several servers
            answers: list[Any] = []
            for name in names:
                client: Any = at(self._client, tag_of(str(name[1])))
                try:
                    answers.append(await client.execute_command(*name))
                except OutOfMemoryError as error:
                    answers.append(error)
            return [*answers, await self._run("submit_jobs", key, arguments)]
        script_keys = scripts.ordered_keys("submit_jobs", VersionKeys.of(key))
        submit = scripts.command("submit_jobs", script_keys, arguments)
        buffers = [packed(command) for command in (*names, submit)]
        answers = await self._connection.exchange(buffers, len(buffers))
        if isinstance(answers[-1], NoScriptError):
            load = ("SCRIPT", "LOAD", scripts.source("submit_jobs"))
            answers[-1] = (await self._connection.call(load, submit))[1]
        return answers

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
        """Returns the job; None if there is none of this id."""
        client, name = self._name_of(job_id)
        value = await client.get(name)
        key = None if value is None else read_version(value)
        return None if key is None else (await self._read(key, [job_id]))[0]

    async def look_again(self, job: Job) -> Job | None:
        """Reads the job again; returns None if it is gone.

        Looks at several jobs of a version share one round trip.
        """
        looks = self._looks.setdefault(job.key, {})
        if not looks:
            self._background.start(self._look(job.key))
        if job.job_id not in looks:
            future = looks[job.job_id] = asyncio.get_running_loop().create_future()
            self._looked_for.add(future)
            future.add_done_callback(self._looked_for.discard)
        return await asyncio.shield(looks[job.job_id])  # others may wait for it, too

    async def _look(self, key: VersionKey) -> None:
        looks = self._looks[key]
        try:
            await asyncio.sleep(TOGETHER_S)
            del self._looks[key]  # later looks read again
            jobs = await self._read(key, [*looks])
        except Exception as error:
            for future in looks.values():
                future.set_exception(error)
                future.exception()  # no warning if nobody waits any more
        else:
            for future, job in zip(looks.values(), jobs, strict=True):
                future.set_result(job)

    async def read_large(self, job: Job, attempt: str) -> bytes | None:
        """Returns the result that has a key of its own; None if it is gone."""
        client, version_keys = self._of(job.key)
        name = f"{version_keys.large_reply_prefix}{job.job_id}:{attempt}"
        return await client.get(name)  # type: ignore[return-value]  # bytes: nothing is decoded

    async def cancel(self, job_id: str) -> Job | None:
        """Cancels the job; if it has ended, deletes its result."""
        if (job := await self.find(job_id)) is None:
            return None
        await self._run("cancel_job", job.key, [job_id])
        return await self.look_again(job)

    async def retry(self, job: Job) -> SubmitCode:
        """Queues a job that did not succeed again, if its input is kept."""
        arguments = [job.job_id, self._most_waiting]
        code = SubmitCode(await self._run("retry_job", job.key, arguments))
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

    async def _run(self, verb: str, key: VersionKey, arguments: Sequence[Any]) -> Any:
        client, version_keys = self._of(key)
        names = scripts.ordered_keys(verb, version_keys)
        return await self._scripts[verb](names, arguments, client=client)

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
            server = self._servers[tag] = _RedisState(
                looked_s=time.monotonic(),
                has_room=not limit_bytes or info.get("used_memory", 0) < limit_bytes,
                # While the file is being begun, it does not have all jobs.
                is_durable=info.get("aof_enabled") == 1 and self._file is None,
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
