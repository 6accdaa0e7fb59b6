"""The process that runs batches: one for each data folder, beside the ingresses."""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from batching.process.readiness import notify_ready
from batching.process.reminder import Reminder
from batching.process.stop_signals import StopEvents
from batching.settings.settings import Settings, SettingsError
from batching.store.background_tasks import end_tasks
from batching.store.clients import connect, connect_async, store_url
from batching.store.jobs.job_store import JobStore
from batching.store.redis_errors import OutageLog
from batching.store.registry.catalog import Catalog
from batching.store.registry.registry import Registry
from ingress.bulk.batch_run import BatchRun, Queue
from ingress.bulk.bulk_errors import BatchNotFound
from ingress.bulk.bulk_folder import BulkFolder
from ingress.bulk.bulk_records import Batch, now_s
from ingress.jobs.job_service import JobService

log = logging.getLogger(__name__)

MOST_AT_ONCE = 4
_NICE = 10  # where it shares cores with ingress, workers and Redis, requests go first
_LOOK_S = 1.0
_LOOK_ALL_S = 10
_AGAIN_S = 10.0  # until a batch that stopped, as the disk was full, begins again
_SWEEP_S = 600
BATCH_KEPT_S = 30 * 86_400
# An upload that is still going on changes its file all the time.
_UNFINISHED_KEPT_S = 86_400


def run(settings: Settings) -> int:
    """Runs batches until it is told to stop; returns the exit code.

    Raises:
        SettingsError: there is no data_dir, or it cannot be used.
    """
    if settings.data_dir is None:
        raise SettingsError("data_dir names no folder, so there are no batches to run")
    folder = BulkFolder(settings.data_dir)
    try:
        folder.create()
    except OSError as error:
        raise SettingsError(f"data_dir cannot be used: {error}") from error
    return uvloop.run(_run(settings, folder))


async def _run(settings: Settings, folder: BulkFolder) -> int:
    signals = StopEvents()
    signals.listen()
    notify_ready()
    feeding = asyncio.create_task(_feed(settings, folder))
    stopped = asyncio.create_task(signals.stop.wait())
    await asyncio.wait({feeding, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if feeding.done():
        feeding.result()
    await end_tasks([feeding, stopped])
    return 0


async def _feed(settings: Settings, folder: BulkFolder) -> None:
    """Runs batches for ever, once no other feeder does."""
    lock = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while not _is_locked(lock):
        await asyncio.sleep(_LOOK_S)
    os.nice(_NICE)
    url = store_url(settings)
    registry = Registry(connect(url), dead_after_s=settings.dead_after_s)
    catalog = Catalog(registry, url, OutageLog(log, settings.redis_url))
    client = connect_async(url)
    store = JobStore(client, settings.job_backlog, settings.job_memory_share)
    service = JobService(store, timeout_s=settings.job_timeout_s, keep_s=settings.job_result_ttl_s)
    queue = Queue(service, store, catalog)
    max_body_bytes = settings.max_request_size_bytes
    feeder = Feeder(folder, lambda one: BatchRun(one, folder, queue, max_body_bytes=max_body_bytes))
    await catalog.start()
    try:
        await feeder.run()
    finally:
        await feeder.close()
        await store.close()
        await catalog.close()
        await client.aclose()
        os.close(lock)


class Feeder:
    """Finds batches that have not ended, and runs a few of them at a time, oldest first."""

    def __init__(
        self,
        folder: BulkFolder,
        make_run: Callable[[Batch], BatchRun],
        *,
        look_s: float = _LOOK_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        self._folder = folder
        self._make_run = make_run
        self._look_s = look_s
        self._again_s = again_s
        self._again_at_s: dict[str, float] = {}  # those that stopped
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()  # there may be thousands, which are not read again
        self._seen_ns = -1
        self._swept_s = 0
        self._looked_s = 0
        self._reminder = Reminder()

    async def run(self) -> None:
        """Runs batches for ever."""
        while True:
            self._start_some()
            if now_s() > self._swept_s + _SWEEP_S:
                sweep(self._folder)
                self._swept_s = now_s()
            await asyncio.sleep(self._look_s)

    async def close(self) -> None:
        await end_tasks(list(self._running.values()))

    def _start_some(self) -> None:
        for batch_id, task in list(self._running.items()):
            if task.done():
                del self._running[batch_id]
                self._seen_ns = -1
                if (error := task.exception()) is not None:
                    self._again_at_s[batch_id] = time.monotonic() + self._again_s
                    if self._reminder.is_due(repr(error)):
                        log.error("batch stopped, and begins again: %s", batch_id, exc_info=error)
        changed_ns = self._folder.changed_ns
        # Two changes may have one time.
        is_new = changed_ns != self._seen_ns or now_s() > self._looked_s + _LOOK_ALL_S
        is_new = is_new or any(map(self._is_due, self._again_at_s))
        if not is_new or len(self._running) >= MOST_AT_ONCE:
            return
        for batch in self._waiting():
            if len(self._running) < MOST_AT_ONCE:
                log.info("batch runs: %s", batch.batch_id)
                self._again_at_s.pop(batch.batch_id, None)
                run = self._make_run(batch)
                self._running[batch.batch_id] = asyncio.create_task(run.run())
        self._seen_ns, self._looked_s = changed_ns, now_s()

    def _is_due(self, batch_id: str) -> bool:
        return self._again_at_s.get(batch_id, 0.0) <= time.monotonic()

    def _waiting(self) -> list[Batch]:
        """Returns the batches that have not ended and do not run, oldest first."""
        found = []
        for batch_id in self._folder.batch_ids() - self._ended - self._running.keys():
            try:
                batch = self._folder.batch(batch_id)
            except BatchNotFound:  # or its record cannot be read, which is in the log
                self._ended.add(batch_id)
                continue
            if batch.status.is_final:
                self._ended.add(batch_id)
            elif self._is_due(batch_id):
                found.append(batch)
        return sorted(found, key=lambda batch: (batch.created_at, batch.batch_id))


def sweep(folder: BulkFolder) -> None:
    """Deletes files whose time is over, and batches that ended long ago."""
    batches = folder.batches()
    now = now_s()
    used = {name for batch in batches if not batch.status.is_final for name in _files_of(batch)}
    for file in folder.files():
        if file.expires_at <= now and file.file_id not in used:
            folder.delete_file(file.file_id)
            log.info("deleted file %s", file.file_id)
    for path in folder.unshown_files():
        if path.stem not in used and _age_s(path, now) > _UNFINISHED_KEPT_S:
            path.unlink(missing_ok=True)
    for batch in batches:
        ended = batch.moments.get(batch.status.value, now)
        if batch.status.is_final and ended + BATCH_KEPT_S <= now:
            folder.delete_batch(batch.batch_id)


def _files_of(batch: Batch) -> tuple[str, str, str]:
    return batch.input_file_id, batch.output_id, batch.errors_id


def _age_s(path: Path, now: int) -> float:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
