"""Submits jobs: those of a version that come together leave in one write."""

import asyncio
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, OutOfMemoryError

from batching.models.spec import VersionKey
from batching.protocol import JOB, Wire
from batching.store import keys
from batching.store.client_types import AsyncClient
from batching.store.clients import at, is_cluster
from batching.store.held_connections import AsyncHeldConnection, Command, packed
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import OPEN_INFERENCE
from batching.store.jobs.webhook_records import Receiver
from batching.store.jobs.webhook_store import note_version
from batching.store.keys import VersionKeys, tag_of
from batching.store.records import rest_of_record
from batching.store.scripts import loader as scripts

SUBMIT_AT_ONCE = 256
# Until a request is accepted; one that was refused may be sent again under its key.
PROMISED_MS = 600_000
# Beyond deadline and time of keeping, so that nothing of a job goes before the job itself.
SLACK_MS = 60_000


class JobRequest(NamedTuple):
    """A job on its way into the queue. `ttl_ms` is from now to its deadline.

    `is_open_inference`: its client speaks the Open Inference Protocol.
    """

    job_id: str
    wire: Wire
    ttl_ms: int
    keep_ms: int
    is_urgent: bool = False
    is_open_inference: bool = False
    receiver: Receiver | None = None

    @property
    def priority(self) -> str:
        return "high" if self.is_urgent else "normal"

    @property
    def whole_ms(self) -> int:
        """Returns for how long anything of the job may be there."""
        return self.ttl_ms + self.keep_ms + SLACK_MS


class Outcome(NamedTuple):
    """Says what became of a submit: Redis' time, and how many jobs waited before this one."""

    code: SubmitCode
    now_ms: int = 0
    before: int = 0


_NO_MEMORY = Outcome(SubmitCode.NO_MEMORY)
_CODES = {code.value: code for code in SubmitCode}  # calling the enumeration is slow


class _Pending(NamedTuple):
    job: JobRequest
    outcome: "asyncio.Future[Outcome]"


class JobWriter:
    """Writes where a job is found, and then the job. Lives on one event loop."""

    def __init__(self, client: AsyncClient, most_waiting: int) -> None:
        self._client = client
        self._most_waiting = most_waiting
        self._pending: dict[VersionKey, list[_Pending]] = {}
        self._connection = AsyncHeldConnection(client)
        self._submit = scripts.script(client, "submit_jobs")
        self._cancel = scripts.script(client, "cancel_job")
        self._writing: asyncio.Task[None] | None = None

    async def submit(self, key: VersionKey, job: JobRequest) -> Outcome:
        """Returns what became of the job.

        Raises:
            RedisError, OSError: unknown; the same call may be made again.
        """
        if (wire := job.wire).body:
            version_keys = VersionKeys.of(key)
            value = b"".join((wire.head, wire.body, wire.tail))
            name = version_keys.body_prefix + job.job_id
            try:
                await at(self._client, version_keys.tag).set(name, value, px=job.whole_ms)
            except OutOfMemoryError:
                return _NO_MEMORY
        if job.receiver is not None:
            # Before there is something to tell of.
            await note_version(self._client, key, job.whole_ms)
        pending = _Pending(job, asyncio.get_running_loop().create_future())
        self._pending.setdefault(key, []).append(pending)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        outcome = await pending.outcome
        if outcome.code not in {SubmitCode.QUEUED, SubmitCode.KNOWN}:
            place = keys.job_place(job.job_id)
            await at(self._client, tag_of(place)).pexpire(place, PROMISED_MS)
        return outcome

    async def close(self) -> None:
        """Ends, and closes its connection."""
        if self._writing is not None:
            await self._writing
        await self._connection.close()

    async def _write_all(self) -> None:
        """Writes until nothing is pending; errors are those of the submits."""
        try:
            while self._pending:
                await asyncio.sleep(0)  # jobs that arrive in the same turn of the loop go along
                key, waiting = next(iter(self._pending.items()))
                some = waiting[:SUBMIT_AT_ONCE]
                del waiting[:SUBMIT_AT_ONCE]
                if not waiting:
                    del self._pending[key]
                try:
                    outcomes = await self._write(key, [pending.job for pending in some])
                except Exception as error:
                    for pending in some:
                        if not pending.outcome.done():
                            pending.outcome.set_exception(error)
                    continue
                for pending, outcome in zip(some, outcomes, strict=True):
                    if not pending.outcome.done():  # its caller may have left
                        pending.outcome.set_result(outcome)
        finally:
            self._writing = None

    async def _write(self, key: VersionKey, jobs: Sequence[JobRequest]) -> list[Outcome]:
        version_keys = VersionKeys.of(key)
        where = json.dumps([*key])
        # First, so that no job is there that nobody finds.
        places: list[Command] = [
            ("SET", keys.job_place(job.job_id), where, "PX", job.whole_ms) for job in jobs
        ]
        names = _key_names(version_keys)
        arguments: list[str | int | bytes] = [self._most_waiting]
        for job in jobs:
            arguments += _arguments(job)
        if is_cluster(self._client):  # places and jobs are on several servers
            answers = [await self._set(place) for place in places]
            client = at(self._client, version_keys.tag)
            answers.append(await self._submit(names, arguments, client=client))
        else:
            answers = await self._exchange(places, scripts.command("submit_jobs", names, arguments))
        *placed, answer = answers
        if isinstance(answer, OutOfMemoryError):
            return [_NO_MEMORY] * len(jobs)
        if isinstance(answer, Exception):
            raise answer
        now_ms, *found = answer
        outcomes = [
            Outcome(_CODES[code], now_ms, before)
            for code, before in zip(found[::2], found[1::2], strict=True)
        ]
        for number, place in enumerate(placed):
            if isinstance(place, Exception) and outcomes[number].code is SubmitCode.QUEUED:
                outcomes[number] = await self._take_back(key, jobs[number], place)
        return outcomes

    async def _take_back(self, key: VersionKey, job: JobRequest, failure: Exception) -> Outcome:
        """Cancels a job that nobody would find: memory was full, and then was not."""
        version_keys = VersionKeys.of(key)
        names = scripts.ordered_keys("cancel_job", version_keys)
        await self._cancel(names, [job.job_id], client=at(self._client, version_keys.tag))
        if not isinstance(failure, OutOfMemoryError):
            raise failure
        return _NO_MEMORY

    async def _exchange(self, places: Sequence[Command], submit: Command) -> list[Any]:
        """Returns the answers to these commands, errors among them."""
        buffers = [packed(command) for command in (*places, submit)]
        answers = await self._connection.exchange(buffers, len(buffers))
        if isinstance(answers[-1], NoScriptError):
            load = ("SCRIPT", "LOAD", scripts.source("submit_jobs"))
            answers[-1] = (await self._connection.call(load, submit))[1]
        return answers

    async def _set(self, place: Command) -> Any:
        try:
            return await at(self._client, tag_of(str(place[1]))).execute_command(*place)
        except OutOfMemoryError as error:
            return error


@lru_cache(maxsize=256)
def _key_names(version_keys: VersionKeys) -> list[str]:
    return scripts.ordered_keys("submit_jobs", version_keys)


def _arguments(job: JobRequest) -> list[str | int | bytes]:
    return [
        job.job_id,
        rest_of_record(JOB, job.ttl_ms, 0, b"" if job.wire.body else job.wire.head),
        job.ttl_ms,
        job.keep_ms,
        job.priority,
        OPEN_INFERENCE if job.is_open_inference else "",
        job.receiver.encode() if job.receiver is not None else "",
        "1" if job.receiver is not None and job.receiver.is_start_told else "",
    ]
