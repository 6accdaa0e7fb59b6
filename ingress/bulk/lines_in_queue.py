"""The lines of one batch that are in the queue: submitted, looked at, removed, deleted.

A job's id is made of the batch and the number of its line, so a feeder that begins anew submits no
line twice: one that is known already is as good as accepted.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from batching.models.spec import VersionKey
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import Job, JobStatus
from batching.store.jobs.job_store import JobStore
from batching.store.jobs.job_writer import JobRequest
from ingress.bulk.bulk_records import Batch, now_s
from ingress.bulk.input_lines import InputLine

# In the queue at a time: so many lines, and about so many bytes of bodies.
MOST_LINES = 500
MOST_BYTES = 64 * 1024 * 1024
MOST_ENDED = 250  # of a version, that a look returns
# A finished job that nobody collects is kept so long; then its line runs again.
KEEP_MS = 3_600_000


class AskedLine(NamedTuple):
    """One line to be submitted, and where it stands in its file."""

    number: int
    offset_bytes: int
    line: InputLine
    key: VersionKey


class QueuedLine(NamedTuple):
    """One line in the queue."""

    number: int
    offset_bytes: int
    custom_id: str
    key: VersionKey
    job_id: str
    size_bytes: int


class LinesInQueue:
    """Holds the lines in the queue."""

    def __init__(self, batch: Batch, store: JobStore) -> None:
        self._batch = batch
        self._store = store
        self._lines: dict[str, QueuedLine] = {}  # by job, those submitted first in front
        self._ended: list[QueuedLine] = []  # whose jobs have still to be deleted
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def room_lines(self) -> int:
        return MOST_LINES - len(self._lines)

    @property
    def room_bytes(self) -> int:
        return MOST_BYTES - self._size_bytes

    async def submit(self, lines: Sequence[AskedLine]) -> list[SubmitCode | BaseException]:
        """Submits lines together; returns what became of each. QUEUED: it is in the queue.

        An error among them says nothing of the line; it may be submitted again.
        """
        ttl_ms = max(1, self._batch.expires_at - now_s()) * 1000
        queued, submits = [], []
        for number, offset_bytes, line, key in lines:
            wire = line.request.to_wire()
            job_id = job_id_of(self._batch.batch_id, number)
            size_bytes = wire.size_bytes
            queued.append(QueuedLine(number, offset_bytes, line.custom_id, key, job_id, size_bytes))
            job = JobRequest(job_id, wire, ttl_ms, KEEP_MS, is_bulk=True)
            submits.append(self._store.submit(key, job))
        outcomes = await asyncio.gather(*submits, return_exceptions=True)
        codes: list[SubmitCode | BaseException] = []
        for one, outcome in zip(queued, outcomes, strict=True):
            code = SubmitCode.KNOWN if isinstance(outcome, Job) else outcome
            if code is SubmitCode.KNOWN:
                self._lines[one.job_id] = one
                self._size_bytes += one.size_bytes
            codes.append(SubmitCode.QUEUED if code is SubmitCode.KNOWN else code)
        return codes

    async def look(self) -> list[tuple[QueuedLine, Job | None]]:
        """Returns some of the lines that have ended; None with one that Redis has lost."""
        ended: list[tuple[QueuedLine, Job | None]] = []
        for key, lines in _by_version(self._lines.values()).items():
            job_ids = [line.job_id for line in lines]
            found = await self._store.find_ended(key, job_ids, MOST_ENDED)
            ended += [
                (self._lines[job_id], job)
                for job_id, job in found.items()
                if job is None or not self._is_over(job)
            ]
        return ended

    def _is_over(self, job: Job) -> bool:
        """Returns whether the job's time was over with its batch's, which ends all of them."""
        return job.status is JobStatus.EXPIRED and now_s() >= self._batch.expires_at

    def remove(self, line: QueuedLine, *, is_lost: bool) -> None:
        """Takes out a line that has ended, or that Redis has lost and that has no job to delete."""
        del self._lines[line.job_id]
        self._size_bytes -= line.size_bytes
        if not is_lost:
            self._ended.append(line)

    async def delete_ended(self) -> None:
        """Deletes the jobs of lines that were removed, and that are on the disk by now."""
        for key, some in _by_version(self._ended).items():
            await self._store.delete(key, [one.job_id for one in some])
        self._ended.clear()

    async def cancel(self, job_ids: list[str]) -> None:
        """Cancels and deletes these jobs, and takes their ids out of the list."""
        while job_ids:
            job = await self._store.cancel(job_ids[-1])
            if job is not None:
                await self._store.delete(job.key, [job.job_id])
            job_ids.pop()
        self._lines.clear()
        self._size_bytes = 0


def job_id_of(batch_id: str, number: int) -> str:
    """Returns the id of a line's job."""
    return hashlib.sha256(f"{batch_id}:{number}".encode()).hexdigest()[:32]


def _by_version(lines: Iterable[QueuedLine]) -> dict[VersionKey, list[QueuedLine]]:
    by_version: dict[VersionKey, list[QueuedLine]] = defaultdict(list)
    for one in lines:
        by_version[one.key].append(one)
    return by_version
