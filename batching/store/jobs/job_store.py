"""The calls about jobs: submit, look, take the result, cancel, try again, list."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from batching.models.spec import VersionKey
from batching.store import keys
from batching.store.client_types import AsyncClient
from batching.store.clients import at, is_cluster
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import FIELDS, Job, JobStatus
from batching.store.jobs.job_servers import JobServers
from batching.store.jobs.job_writer import PROMISED_MS, SLACK_MS, JobRequest, JobWriter
from batching.store.jobs.webhook_records import Webhook
from batching.store.keys import VersionKeys, tag_of
from batching.store.scripts.loader import ordered_keys, script

log = logging.getLogger(__name__)

_VERBS = ("retry_job", "cancel_job")

# A position behind more jobs is not worth the look.
FARTHEST = 1000


class JobStore:
    """Calls the scripts about jobs; raises redis' own errors. Lives on one event loop.

    In a cluster the broker may close a client that no call uses, so each call asks for its own.
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
        self._writer = JobWriter(client, most_waiting)
        self._servers = JobServers(client, memory_share, is_writing_file=is_writing_file)
        self._scripts = {verb: script(client, verb) for verb in _VERBS}

    async def submit(self, key: VersionKey, job: JobRequest) -> Job | SubmitCode:
        """Has the job wait; returns it, or the code for which it was refused.

        A call whose answer was lost may be made again. Of one that was refused nothing is kept but
        its place, for some minutes: another submit of its id may be accepted (`forget`).
        """
        version_keys = VersionKeys.of(key)
        server = await self._servers.for_submit(version_keys.tag)
        if not server.has_room:
            return SubmitCode.NO_MEMORY
        outcome = await self._writer.submit(key, job)
        if outcome.code is SubmitCode.KNOWN:
            if (known := await self.find(job.job_id)) is not None:
                await self._keep_place(known)
            return known or outcome.code
        if outcome.code is not SubmitCode.QUEUED:
            return outcome.code
        return Job(
            job_id=job.job_id,
            key=key,
            status=JobStatus.QUEUED,
            created_ms=outcome.now_ms,
            expires_ms=outcome.now_ms + job.ttl_ms + job.keep_ms,
            is_urgent=job.is_urgent,
            is_open_inference=job.is_open_inference,
            webhook=Webhook(job.receiver) if job.receiver else None,
            position=None if job.is_urgent or outcome.before > FARTHEST else outcome.before,
            is_durable=server.is_durable,
        )

    async def close(self) -> None:
        """Closes its own connection; no submit may be under way."""
        await self._writer.close()

    async def forget(self, *job_ids: str) -> None:
        """Forgets jobs that were refused, and whose ids nobody else submits."""
        places = [keys.job_place(job_id) for job_id in job_ids]
        if is_cluster(self._client):
            for place in places:
                await at(self._client, tag_of(place)).unlink(place)
        elif places:
            await self._client.unlink(*places)

    async def promise(self, digest: str, promise: str) -> str | None:
        """Says for some minutes what an idempotency key will stand for; returns what it does.

        Args:
            digest: of the key.
            promise: what it will stand for, if it stands for nothing yet.
        """
        name = keys.job_promise(digest)
        value: bytes | None = await at(self._client, tag_of(name)).set(
            name, promise, px=PROMISED_MS, nx=True, get=True
        )
        return None if value is None else value.decode()

    async def keep_promise(self, digest: str, ttl_ms: int) -> None:
        """Has the key stand for its job as long as that is there."""
        name = keys.job_promise(digest)
        await at(self._client, tag_of(name)).pexpire(name, ttl_ms)

    async def find(self, job_id: str) -> Job | None:
        """Returns the job; None if there is none of this id any more."""
        key = await self._version_of(job_id)
        if key is None:
            return None
        [job] = await self._read(key, [job_id])
        return job

    async def read_large(self, job: Job, attempt: str) -> bytes | None:
        """Returns the result that has a key of its own; None if it has gone."""
        client, version_keys = self._of(job.key)
        value: bytes | None = await client.get(
            f"{version_keys.large_reply_prefix}{job.job_id}:{attempt}"
        )
        return value

    async def read_pieces(self, job: Job, from_byte: int) -> list[tuple[int, bytes]]:
        """Returns what is kept of a running job's answer from this byte on, by first bytes."""
        client, version_keys = self._of(job.key)
        found = await client.zrangebyscore(
            f"{version_keys.job_prefix}{job.job_id}:pieces", from_byte, "+inf", withscores=True
        )
        return [(int(place), entry.partition(b":")[2]) for entry, place in found]

    async def cancel(self, job_id: str) -> Job | None:
        """Cancels a job that has not finished, and lets the result of one that has go."""
        key = await self._version_of(job_id)
        if key is None:
            return None
        await self._run("cancel_job", key, [job_id])
        return await self.find(job_id)

    async def retry(self, job: Job) -> SubmitCode:
        """Has a job that did not succeed wait again, if its input is kept."""
        arguments = [job.job_id, self._most_waiting]
        code = SubmitCode(await self._run("retry_job", job.key, arguments))
        if code is SubmitCode.QUEUED and (again := await self.find(job.job_id)) is not None:
            await self._keep_place(again)
        return code

    async def _keep_place(self, job: Job) -> None:
        """Has the job be found as long as it is there."""
        name = keys.job_place(job.job_id)
        await at(self._client, tag_of(name)).pexpireat(name, job.expires_ms + SLACK_MS)

    async def newest(self, key: VersionKey, before_us: int, count: int) -> list[tuple[int, Job]]:
        """Returns the newest jobs of a version before this time, each with its time of submit."""
        index = VersionKeys.of(key).job_index
        while True:
            newest = await self._of(key)[0].zrevrangebyscore(
                index, f"({before_us}", "-inf", start=0, num=count, withscores=True
            )
            ids = [job_id.decode(errors="replace") for job_id, _ in newest]
            jobs = await self._read(key, ids)
            gone = [name for (name, _), job in zip(newest, jobs, strict=True) if job is None]
            if not gone:
                break
            await self._of(key)[0].zrem(index, *gone)
        return [
            (int(score), job)
            for (_, score), job in zip(newest, jobs, strict=True)
            if job is not None
        ]

    async def count_waiting(self, key: VersionKey) -> int:
        client, version_keys = self._of(key)
        return int(await client.llen(version_keys.job_queue))

    async def _run(self, verb: str, key: VersionKey, arguments: Sequence[Any]) -> Any:
        """Returns what the script answers."""
        client, version_keys = self._of(key)
        names = ordered_keys(verb, version_keys)
        return await self._scripts[verb](names, arguments, client=client)

    async def _read(self, key: VersionKey, job_ids: Sequence[str]) -> list[Job | None]:
        if not job_ids:
            return []
        client, version_keys = self._of(key)
        async with client.pipeline(transaction=False) as pipe:
            pipe.time()
            for job_id in job_ids:
                pipe.hmget(version_keys.job_prefix + job_id, FIELDS)
            for job_id in job_ids:
                pipe.lpos(version_keys.job_queue, job_id, maxlen=FARTHEST)
            (seconds, micros), *answers = await pipe.execute()
        places = answers[len(job_ids) :]
        now_ms = seconds * 1000 + micros // 1000
        is_durable = (await self._servers.look(version_keys.tag)).is_durable
        jobs: list[Job | None] = []
        for job_id, values, place in zip(job_ids, answers[: len(job_ids)], places, strict=True):
            found = {
                name: value for name, value in zip(FIELDS, values, strict=True) if value is not None
            }
            try:
                job = Job.of(job_id, key, found, now_ms)
                job = msgspec.structs.replace(job, position=place, is_durable=is_durable)
                jobs.append(job)
            except ValueError as error:
                if found:
                    log.error("unreadable job=%s: %r", job_id, error)
                jobs.append(None)
        return jobs

    async def _version_of(self, job_id: str) -> VersionKey | None:
        name = keys.job_place(job_id)
        value = await at(self._client, tag_of(name)).get(name)
        if value is None:
            return None
        try:
            model_name, model_version = json.loads(value)
        except (ValueError, TypeError, RecursionError) as error:
            log.error("unreadable place of job=%s: %r", job_id, error)
            return None
        return VersionKey(str(model_name), str(model_version))

    def _of(self, key: VersionKey) -> tuple[AsyncClient, VersionKeys]:
        version_keys = VersionKeys.of(key)
        return at(self._client, version_keys.tag), version_keys
