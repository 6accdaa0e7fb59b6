"""Runs one batch: feeds its lines to the queue as jobs, and writes their results down.

A line is done when it is on the disk, in the output or the error file; only then is its job
deleted. So each line is in one of the files, once, whatever dies in between; a handler may see a
line again, as it may any job.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from batching.errors import ModelNotFound, ServeError, VersionNotFound
from batching.models.spec import VersionKey
from batching.process.reminder import Reminder
from batching.store.ingress_queue import SubmitCode
from batching.store.jobs.job_records import Job
from batching.store.jobs.job_store import JobStore
from batching.store.redis_errors import AWAY
from batching.store.registry.catalog import Catalog
from ingress.bulk.batch_files import BatchFiles
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import Batch, BatchStatus, Counts, now_s
from ingress.bulk.input_lines import BadLine, InputLine, RawLine, custom_id_of, parse_line
from ingress.bulk.lines_in_queue import MOST_LINES, AskedLine, LinesInQueue, QueuedLine, job_id_of
from ingress.jobs.job_errors import ResultGone
from ingress.jobs.job_service import JobService

log = logging.getLogger(__name__)

# A server that starts, or whose Redis was emptied, registers its models meanwhile.
UNKNOWN_S = 10.0
_AGAIN_S = 0.5  # until a line that cannot wait in the queue now is tried again
_PAUSE_S = 1.0  # while Redis is away
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.5
_SAVE_S = 1.0
_LINES_AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Queue:
    """Holds what all batches use of the queue."""

    service: JobService
    store: JobStore
    catalog: Catalog


class BatchRun:
    """One batch, from where it was left to its end."""

    def __init__(
        self, batch: Batch, folder: BulkFolder, queue: Queue, *, max_body_bytes: int
    ) -> None:
        self.batch = batch
        self._folder = folder
        self._queue = queue
        self._max_body_bytes = max_body_bytes
        self._unread: Iterator[RawLine] = iter(())
        self._has_read_all = False
        self._again: deque[tuple[int, int]] = deque()  # numbers and offsets of lines to read again
        self._again_at_s = 0.0
        self._unknown_since_s: dict[str, float] = {}  # models
        self._reminder = Reminder()

    async def run(self) -> None:
        """Returns when the batch has ended.

        Raises:
            DiskFailed, OSError: a file, or the record, cannot be read or written; the batch stays
                as it is, and may be run again.
        """
        files = self._use_files()
        if not files.has_input:
            return self._fail("The input file is gone.")
        if self.batch.status is BatchStatus.VALIDATING:
            total = await files.count_lines()
            if not total:
                return self._fail("The input file has no lines.")
            counted = msgspec.structs.replace(self.batch, counts=Counts(total=total))
            self._save(counted.entering(BatchStatus.IN_PROGRESS))
            files = self._use_files()
        await files.open()
        try:
            await self._finish(await self._feed())
        finally:
            files.close()
        return None

    def _use_files(self) -> BatchFiles:
        self._files = BatchFiles(self.batch, self._folder, self._max_body_bytes)
        return self._files

    async def _feed(self) -> BatchStatus:
        """Has all lines run; returns how the batch ended."""
        now = asyncio.get_running_loop().time
        self._lines = LinesInQueue(self.batch, self._queue.store)
        self._unread = self._files.undone()
        saved_s, look_s = now(), _SHORTEST_LOOK_S
        while not self._has_read_all or self._again or self._lines:
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
                self._say("batch waits", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if now() > saved_s + _SAVE_S:
                self._save(self._counted())
                saved_s = now()
            look_s = _SHORTEST_LOOK_S if has_moved else min(2 * look_s, _LONGEST_LOOK_S)
            await asyncio.sleep(look_s)
        return BatchStatus.COMPLETED

    async def _submit_some(self) -> bool:
        """Submits lines while there is room; returns whether any was submitted, or refused."""
        done_before = self._files.done_count
        asked: list[AskedLine] = []
        for raw in self._take():
            try:
                line = parse_line(raw.text, self.batch.endpoint, self._max_body_bytes)
            except BadLine as bad:
                self._files.refuse(raw.number, bad.custom_id, bad.code, bad.message)
                continue
            if (key := await self._resolve(raw, line)) is not None:
                asked.append(AskedLine(raw.number, raw.offset_bytes, line, key))
        outcomes = await self._lines.submit(asked)
        for one, outcome in zip(asked, outcomes, strict=True):
            if outcome is SubmitCode.QUEUED:
                continue
            if outcome is SubmitCode.NO_VERSION:
                self._queue.catalog.forget(one.key.model_name)
            elif isinstance(outcome, BaseException) and not isinstance(
                outcome, (*AWAY, ServeError)
            ):
                raise outcome
            self._read_again(one.number, one.offset_bytes, outcome)
        await self._files.sync()
        return self._files.done_count > done_before or SubmitCode.QUEUED in outcomes

    def _take(self) -> Iterator[RawLine]:
        """Yields lines that may be submitted: those to be read again, then the next ones."""
        now = asyncio.get_running_loop().time
        taken_bytes, room_bytes = 0, self._lines.room_bytes
        for _ in range(min(_LINES_AT_ONCE, self._lines.room_lines)):
            if taken_bytes >= room_bytes:
                return
            raw = None
            if self._again and now() >= self._again_at_s:
                raw = self._files.read_again(*self._again.popleft())
            elif len(self._again) < MOST_LINES and (raw := next(self._unread, None)) is None:
                self._has_read_all = True
            if raw is None:
                return
            taken_bytes += len(raw.text or b"")
            yield raw

    async def _resolve(self, raw: RawLine, line: InputLine) -> VersionKey | None:
        """Returns the version that the line is for; None if it has to wait, or is refused."""
        name, catalog = line.model_name, self._queue.catalog
        time_s = asyncio.get_running_loop().time()
        try:
            spec = catalog.known(name, line.model_version)
            spec = spec or await catalog.resolve(name, line.model_version)
        except (ModelNotFound, VersionNotFound) as error:
            if time_s >= self._unknown_since_s.setdefault(name, time_s) + UNKNOWN_S:
                self._files.refuse(raw.number, line.custom_id, error.reason, error.message)
            else:
                self._read_again(raw.number, raw.offset_bytes, error)
            return None
        except (*AWAY, ServeError) as error:
            self._read_again(raw.number, raw.offset_bytes, error)
            return None
        self._unknown_since_s.pop(name, None)
        return spec.key

    def _read_again(self, number: int, offset_bytes: int, why: object) -> None:
        """Has the line be read again a little later."""
        self._again.append((number, offset_bytes))
        self._again_at_s = asyncio.get_running_loop().time() + _AGAIN_S
        self._say("lines wait", why)

    async def _collect(self) -> bool:
        """Writes finished lines down and lets their jobs go; returns whether there were any."""
        ended = await self._lines.look()
        for line, job in ended:
            if job is None:
                self._read_again(line.number, line.offset_bytes, "Redis has lost them")
            else:
                await self._write_down(line, job)
            self._lines.remove(line, is_lost=job is None)
        await self._files.sync()
        await self._lines.delete_ended()
        return bool(ended)

    async def _write_down(self, line: QueuedLine, job: Job) -> None:
        try:
            reply = await self._queue.service.result(job)
        except ResultGone as gone:
            self._files.refuse(line.number, line.custom_id, gone.reason, gone.message)
        else:
            self._files.answer(line.number, line.custom_id, line.job_id, reply)

    async def _cancel_all(self) -> None:
        """Collects what has finished, and cancels the rest of what is in the queue.

        Jobs of a feeder before this one are among them. Lines are submitted in order, so they are
        among the first that are not done.
        """
        waiting: list[str] | None = None
        while waiting is None or waiting:
            try:
                await self._collect()
                if waiting is None:
                    some = islice(self._files.undone(), 3 * MOST_LINES)
                    waiting = [job_id_of(self.batch.batch_id, raw.number) for raw in some]
                await self._lines.cancel(waiting)
            except (*AWAY, ServeError) as error:
                self._say("batch cannot end yet", error)
                await asyncio.sleep(_PAUSE_S)

    async def _expire_all(self) -> None:
        await self._cancel_all()
        words = "The batch's completion_window has passed."
        for count, raw in enumerate(self._files.undone()):
            self._files.refuse(raw.number, custom_id_of(raw.text), "batch_expired", words)
            if count % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _finish(self, end: BatchStatus) -> None:
        await self._files.sync()
        batch = self._counted()
        if end is BatchStatus.COMPLETED:
            batch = batch.entering(BatchStatus.FINALIZING)
            self._save(batch)
        output_id, error_id = self._files.show()
        batch = msgspec.structs.replace(batch, output_file_id=output_id, error_file_id=error_id)
        self._save(batch.entering(end))
        log.info("batch ended: %s status=%s counts=%s", batch.batch_id, end, batch.counts)

    def _fail(self, why: str) -> None:
        failed = msgspec.structs.replace(self.batch, error=why)
        self._save(failed.entering(BatchStatus.FAILED))

    def _counted(self) -> Batch:
        return msgspec.structs.replace(self.batch, counts=self._files.counts)

    def _save(self, batch: Batch) -> None:
        self.batch = batch
        self._folder.save_batch(batch)

    def _say(self, what: str, why: object) -> None:
        if self._reminder.is_due(f"{what}: {why!r}"):
            log.warning("%s: %s %r", what, self.batch.batch_id, why)
