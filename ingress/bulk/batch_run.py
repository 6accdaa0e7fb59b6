"""Runs one batch: feeds its lines to the queue as jobs, and writes their results down.

A job's id is made of the batch and the number of its line, so a feeder that begins anew submits no
line twice. A line is done when it is on the disk, in the output or the error file; only then is its
job deleted. So each line is in one of the files, once, whatever dies in between; a handler may see
a line again, as it may any job.
"""

import asyncio
import hashlib
import logging
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from batching.errors import ModelNotFound, ServeError, VersionNotFound
from batching.models.spec import ModelSpec, VersionKey
from batching.store.ingress_side.ingress_queue import SubmitCode
from batching.store.jobs.job_records import Job, JobStatus
from batching.store.jobs.job_store import JobRequest, JobStore
from batching.store.redis_errors import AWAY
from batching.store.registry.catalog import Catalog
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import Batch, BatchStatus, BulkFile, Counts, now_s
from ingress.bulk.input_lines import (
    BadLine,
    InputLine,
    custom_id_of,
    parse_line,
    read_lines,
)
from ingress.bulk.output_lines import LineSet, OutputFile, answer_line, error_line
from ingress.jobs.job_errors import ResultGone
from ingress.jobs.job_service import JobService

log = logging.getLogger(__name__)

# In the queue at a time: so many lines, and about so many bytes of bodies.
MOST_LINES = 500
MOST_BYTES = 64 * 1024 * 1024
LOOKS_AT_ONCE = 50
# A finished job that nobody collects is kept so long; then its line runs again.
KEEP_MS = 3_600_000
# A server that starts registers its models meanwhile.
UNKNOWN_S = 10.0
_PAUSE_S = 1.0  # while Redis is away, or the queue is full
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.5
_SAVE_S = 1.0
_LINES_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Queue:
    """Holds what all batches use of the queue."""

    service: JobService
    store: JobStore
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class _InFlight:
    """One line in the queue."""

    number: int
    custom_id: str
    key: VersionKey
    job_id: str
    size_bytes: int


class BatchRun:
    """One batch, from where it was left to its end."""

    def __init__(
        self,
        batch: Batch,
        folder: BulkFolder,
        queue: Queue,
        *,
        max_body_bytes: int,
    ) -> None:
        self.batch = batch
        self._folder = folder
        self._service, self._store = queue.service, queue.store
        self._catalog = queue.catalog
        self._max_body_bytes = max_body_bytes
        self._in_flight: deque[_InFlight] = deque()
        self._written: list[_InFlight] = []  # whose jobs have still to be deleted
        self._bytes_in_flight = 0
        self._input = folder.lines_path(batch.input_file_id)
        self._lines: Iterator[tuple[int, bytes | None]] = iter(())
        self._has_all = self._is_anew = False
        # A line that was read and not yet submitted.
        self._next: tuple[int, InputLine] | None = None

    async def run(self) -> None:
        """Returns when the batch has ended.

        Raises:
            OSError: a file cannot be read or written; the batch stays as it is.
        """
        if not self._input.exists():
            return self._fail("The input file is gone.")
        if self.batch.status is BatchStatus.VALIDATING:
            total = sum(1 for _ in self._all_lines())
            if not total:
                return self._fail("The input file has no lines.")
            counted = msgspec.structs.replace(self.batch, counts=Counts(total=total))
            self._save(counted.entering(BatchStatus.IN_PROGRESS))
        self._lines = self._all_lines()
        # In this order: what was written before a crash counts.
        self._done = LineSet()
        batch = self.batch
        self._output = OutputFile(self._folder.lines_path(batch.output_id), self._done)
        self._errors = OutputFile(self._folder.lines_path(batch.errors_id), self._done)
        try:
            end = await self._feed()
            self._finish(end)
        finally:
            self._output.close()
            self._errors.close()
        return None

    async def _feed(self) -> BatchStatus:
        """Has all lines run; returns how the batch ended."""
        loop = asyncio.get_running_loop()
        self._started_s = saved_s = loop.time()
        look_s = _SHORTEST_LOOK_S
        while not self._has_all or self._in_flight:
            if self._folder.is_to_cancel(self.batch.batch_id):
                self._save(self._counted().entering(BatchStatus.CANCELLING))
                await self._cancel_all()
                return BatchStatus.CANCELLED
            if now_s() >= self.batch.expires_at:
                await self._expire_all()
                return BatchStatus.EXPIRED
            try:
                has_moved = await self._submit_some()
                has_moved = await self._collect() or has_moved
            except (*AWAY, ServeError) as error:
                log.warning("batch waits: %s error=%r", self.batch.batch_id, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if loop.time() > saved_s + _SAVE_S:
                self._save(self._counted())
                saved_s = loop.time()
            look_s = _SHORTEST_LOOK_S if has_moved else min(2 * look_s, _LONGEST_LOOK_S)
            await asyncio.sleep(0 if has_moved else look_s)
        return BatchStatus.COMPLETED

    async def _submit_some(self) -> bool:
        """Submits lines while there is room; returns whether any was submitted, or refused."""
        count = 0
        while (
            count < _LINES_AT_ONCE
            and len(self._in_flight) < MOST_LINES
            and self._bytes_in_flight < MOST_BYTES
        ):
            if self._next is None and not self._read_next():
                break
            # It stays the next one until it is submitted or refused.
            if self._next is not None and not await self._submit(*self._next):
                break
            self._next = None
            count += 1
        self._sync()
        return count > 0

    def _read_next(self) -> bool:
        """Reads on to a line that can be run, or to a bad one; returns whether there is any."""
        queued = {one.number for one in self._in_flight} if self._is_anew else ()
        for number, line in self._lines:
            if number in self._done or number in queued:
                continue
            try:
                parsed = parse_line(line, self.batch.endpoint, self._max_body_bytes)
                self._next = number, parsed
            except BadLine as bad:
                self._add_error(number, bad.custom_id, bad.code, bad.message)
            return True
        self._has_all = True
        return False

    async def _submit(self, number: int, line: InputLine) -> bool:
        """Submits the line, or refuses it for good; returns False if it has to wait."""
        try:
            spec = await self._resolve(line)
        except (ModelNotFound, VersionNotFound) as error:
            if asyncio.get_running_loop().time() < self._started_s + UNKNOWN_S:
                return False
            self._add_error(number, line.custom_id, error.reason, error.message)
            return True
        wire = line.request.to_wire()
        job_id = _job_id(self.batch.batch_id, number)
        ttl_ms = max(1, self.batch.expires_at - now_s()) * 1000
        job = JobRequest(job_id, wire, ttl_ms, KEEP_MS, is_bulk=True)
        code = await submit_line(self._store, spec.key, job)
        if code is SubmitCode.NO_VERSION:
            self._catalog.forget(spec.model_name)
            return False
        if code not in {SubmitCode.QUEUED, SubmitCode.KNOWN}:
            return False
        one = _InFlight(number, line.custom_id, spec.key, job_id, wire.size_bytes)
        self._in_flight.append(one)
        self._bytes_in_flight += one.size_bytes
        return True

    async def _resolve(self, line: InputLine) -> ModelSpec:
        name, version = line.model_name, line.model_version
        known = self._catalog.known(name, version)
        return known or await self._catalog.resolve(name, version)

    async def _collect(self) -> bool:
        """Writes finished lines down and lets their jobs go; returns whether there were any.

        Looks at the oldest first, and goes on while some have finished.
        """
        has_any = False
        for _ in range(-(-len(self._in_flight) // LOOKS_AT_ONCE)):
            count = min(LOOKS_AT_ONCE, len(self._in_flight))
            some = [self._in_flight.popleft() for _ in range(count)]
            left = list(some)
            try:
                jobs = await find_lines(self._store, [one.job_id for one in some])
                for one, job in zip(some, jobs, strict=True):
                    if job is None:
                        # Redis has lost it, or kept its result in vain: the line runs again.
                        self._begin_anew()
                    elif not await self._end(one, job):
                        continue
                    else:
                        self._written.append(one)
                    self._bytes_in_flight -= one.size_bytes
                    left.remove(one)
            finally:
                self._in_flight.extend(left)
            await self._let_go()
            has_any = has_any or len(left) < count
            if len(left) == count:
                break
        return has_any

    def _begin_anew(self) -> None:
        """Reads the input from its start; what is done or in the queue is left out."""
        self._lines = self._all_lines()
        self._has_all, self._next, self._is_anew = False, None, True

    async def _end(self, one: _InFlight, job: Job) -> bool:
        """Writes the line of a job that has ended; returns whether it has."""
        if not job.status.is_final:
            return False
        if job.status is JobStatus.EXPIRED and now_s() >= self.batch.expires_at:
            return False  # with the rest of the batch
        try:
            reply = await self._service.result(job)
        except ResultGone as gone:
            self._add_error(one.number, one.custom_id, str(job.status), gone.message)
            return True
        if self._done.add(one.number):
            line, is_success = answer_line(
                self.batch.batch_id, one.number, one.custom_id, one.job_id, reply
            )
            (self._output if is_success else self._errors).add(line)
        return True

    async def _let_go(self) -> None:
        """Deletes the jobs whose lines have been written, once those are on the disk."""
        self._sync()
        by_version: dict[VersionKey, list[str]] = defaultdict(list)
        for one in self._written:
            by_version[one.key].append(one.job_id)
        for key, job_ids in by_version.items():
            await self._store.delete(key, job_ids)
        self._written.clear()

    async def _cancel_all(self) -> None:
        """Collects what has finished, and cancels the rest of what is in the queue."""
        waiting = self._may_wait()
        while waiting:
            try:
                await self._collect()
                for job_id in list(waiting):
                    job = await self._store.cancel(job_id)
                    if job is not None:
                        await self._store.delete(job.key, [job_id])
                    waiting.remove(job_id)
            except (*AWAY, ServeError) as error:
                log.warning("batch cannot end yet: %s error=%r", self.batch.batch_id, error)
                await asyncio.sleep(_PAUSE_S)
        self._in_flight.clear()

    def _may_wait(self) -> list[str]:
        """Returns the ids of jobs that this feeder, or one before it, may have in the queue.

        Lines are submitted in order, so they are among the first that are not done.
        """
        undone = (n for n, _ in self._all_lines() if n not in self._done)
        return [_job_id(self.batch.batch_id, n) for n in islice(undone, 2 * MOST_LINES)]

    async def _expire_all(self) -> None:
        await self._cancel_all()
        words = "The batch's completion_window has passed."
        for number, line in self._all_lines():
            if number not in self._done:
                self._add_error(number, custom_id_of(line), "batch_expired", words)

    def _all_lines(self) -> Iterator[tuple[int, bytes | None]]:
        return read_lines(self._input, self._max_body_bytes)

    def _add_error(self, number: int, custom_id: object, code: str, message: str) -> None:
        if self._done.add(number):
            line = error_line(self.batch.batch_id, number, custom_id, code, message)
            self._errors.add(line)

    def _sync(self) -> None:
        self._output.sync()
        self._errors.sync()

    def _finish(self, end: BatchStatus) -> None:
        self._sync()
        batch = self._counted()
        if end is BatchStatus.COMPLETED:
            batch = batch.entering(BatchStatus.FINALIZING)
            self._save(batch)
        output_id = self._show(self._output, batch.output_id, "output")
        error_id = self._show(self._errors, batch.errors_id, "errors")
        batch = msgspec.structs.replace(batch, output_file_id=output_id, error_file_id=error_id)
        self._save(batch.entering(end))
        log.info("batch ended: %s status=%s counts=%s", batch.batch_id, end, batch.counts)

    def _show(self, lines: OutputFile, file_id: str, kind: str) -> str | None:
        """Gives the file a record, if it has any lines; returns its id."""
        if not lines.count:
            return None
        created = now_s()
        name = f"{self.batch.batch_id}_{kind}.jsonl"
        expires = created + self.batch.output_ttl_s
        record = BulkFile(file_id, lines.size_bytes, created, name, "batch_output", expires)
        self._folder.save_file(record)
        return file_id

    def _fail(self, why: str) -> None:
        failed = msgspec.structs.replace(self.batch, error=why)
        self._save(failed.entering(BatchStatus.FAILED))

    def _counted(self) -> Batch:
        counts = msgspec.structs.replace(
            self.batch.counts, completed=self._output.count, failed=self._errors.count
        )
        return msgspec.structs.replace(self.batch, counts=counts)

    def _save(self, batch: Batch) -> None:
        self.batch = batch
        self._folder.save_batch(batch)


async def submit_line(store: JobStore, key: VersionKey, job: JobRequest) -> SubmitCode:
    """Submits one line; a job of its id that is there already is as good."""
    outcome = await store.submit(key, job)
    return SubmitCode.QUEUED if isinstance(outcome, Job) else outcome


async def find_lines(store: JobStore, job_ids: list[str]) -> list[Job | None]:
    """Returns the jobs of these ids, None where there is none."""
    return list(await asyncio.gather(*(store.find(job_id) for job_id in job_ids)))


def _job_id(batch_id: str, number: int) -> str:
    return hashlib.sha256(f"{batch_id}:{number}".encode()).hexdigest()[:32]
