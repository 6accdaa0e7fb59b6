"""One worker slot of a node: keeps one worker process of one model version alive.

    STARTING → LOADING → READY, and STARTING again once it has died; FAILED once it is given up

When a process dies, its requests are taken back first of all.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from batching.errors import DependenciesFailed, ServeError
from batching.metrics import log_load_time
from batching.models.spec import ModelSpec
from batching.models.statuses import WorkerState, WorkerStatus, utc_now
from batching.process.retries import Backoff
from batching.settings.settings import Settings
from batching.store.node_queue import NodeQueue, ReclaimMode
from batching.store.redis_errors import OutageLog
from workers.archives.model_files import Prepared
from workers.machine import Device
from workers.slots.assignment import EXIT_LOAD_FAILED, EXIT_NOT_STARTED, Assignment, ExitStatus
from workers.slots.slot_record import SlotRecord
from workers.slots.worker_process import Report, WorkerProcess, worker_environment

log = logging.getLogger(__name__)

PROVEN_AFTER_S = 2.0  # a worker that was READY for so long has not died of its start


@dataclass(frozen=True, slots=True)
class SlotContext:
    node_id: str
    settings: Settings
    queue: NodeQueue
    sequence: "itertools.count[int]"
    prepare: Callable[..., Awaitable[Prepared]]
    outage: OutageLog


class Slot:
    def __init__(
        self, context: SlotContext, spec: ModelSpec, number: int, device: Device, threads: int
    ) -> None:
        self.spec = spec
        self.number = number
        self.device = device
        self._context = context
        self._threads = threads
        self._backoff = Backoff()
        self.record = SlotRecord(context.queue, context.outage, spec.key, self._backoff)
        self._process: WorkerProcess | None = None
        self._started_at = 0.0
        self._ready_at: float | None = None
        self._why_not_loaded: dict[str, Any] = {}
        self._is_hopeless = False
        self._should_stop = asyncio.Event()

    def stop(self) -> None:
        """Asks the process to finish its batch and end; `run` returns after that."""
        self._should_stop.set()
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        self._should_stop.set()
        if self._process is not None:
            self._process.kill()

    async def measure(self) -> None:
        if self.record.state is WorkerState.READY and self._process is not None:
            await self.record.report_again(memory_bytes=self._process.resident_bytes)

    async def run(self) -> None:
        """Keeps a worker alive until `stop`, or until it has failed for too long."""
        while not self._should_stop.is_set():
            await self._live_once()
            if self._should_stop.is_set():
                break
            limit_s = self.spec.max_retry_timeout_s
            if self._is_hopeless or self._backoff.has_failed_for(limit_s, time.monotonic()):
                way_out = "register it anew, or scale it to 0 and back"
                log.error("given up model=%s version=%s: %s", *self.spec.key, way_out)
                await self.record.set_state(WorkerState.FAILED)
                # Unless another worker of the version lives, no request waits for one any more.
                count = await self.record.retry(
                    self._context.queue.refuse_waiting, self.spec.key, "no_worker"
                )
                if count:
                    log.warning("refused model=%s version=%s requests=%d", *self.spec.key, count)
                await self._should_stop.wait()
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._should_stop.wait(), self._backoff.delay_s)
        await self.record.end()

    def _new_id(self) -> str:
        return f"{self._context.node_id}-{next(self._context.sequence)}"

    async def _live_once(self) -> None:
        worker_id = self.record.successor_id or self._new_id()
        # The first worker of a registration begins without files that earlier ones have left, as in
        # TorchServe; so does one after another that did not load, perhaps because of them.
        is_exact = self._ready_at is None
        self._ready_at = None
        self._why_not_loaded = {}
        # Before the archive is unpacked: requests may queue for a worker that has yet to load.
        await self.record.begin(self._first_status(worker_id))
        try:
            prepared = await self._prepared(is_exact=is_exact)
        except ServeError as error:
            log.error("model=%s version=%s: %s", *self.spec.key, error.message)
            # An installation takes minutes and fails again, until the model is registered anew.
            # A disk may have room again by itself, as for an archive.
            is_of_disk = isinstance(error.__cause__, OSError)
            self._is_hopeless = isinstance(error, DependenciesFailed) and not is_of_disk
            await self._note_failure(error=_with_cause(error), reason=error.reason)
            return
        except Exception as error:
            # A start that failed in any other way: no thread can be started, say. If that ended the
            # slot, it would be opened again at once, hundreds of times a second.
            reason = error.strerror if isinstance(error, OSError) else None
            template = "model=%s version=%s cannot be prepared: %s"
            log.error(template, *self.spec.key, error, exc_info=reason is None)
            await self._note_failure(error=reason or str(error))
            return
        if prepared is None or self._should_stop.is_set():
            return
        try:
            ended = await self._watch(worker_id, prepared)
        except OSError as error:
            # No descriptor, process or memory is left: a start that failed as any other.
            log.error("model=%s version=%s cannot run a worker: %s", *self.spec.key, error)
            ended = ExitStatus(EXIT_NOT_STARTED, error.strerror or str(error))
        await self._announce_successor()
        count = await self._take_back(worker_id, ended)
        if not self._should_stop.is_set():
            await self._judge(ended, was_at_work=count > 0)

    def _first_status(self, worker_id: str) -> WorkerStatus:
        previous = self.record.status
        return WorkerStatus(
            worker_id=worker_id,
            node_id=self._context.node_id,
            slot=self.number,
            state=WorkerState.STARTING,
            pid=0,
            device=str(self.device),
            started_at=utc_now(),
            failures=self._backoff.failures,
            error=previous.error if previous else "",
            traceback=previous.traceback if previous else "",
            is_out_of_memory=previous.is_out_of_memory if previous else False,
        )

    async def _prepared(self, *, is_exact: bool) -> Prepared | None:
        """Returns what a process needs; None once the slot is to stop, which waits for no download.

        A download goes on without this slot, for the next one that needs it.
        """
        preparing = asyncio.ensure_future(self._context.prepare(self.spec, is_exact=is_exact))
        stopping = asyncio.ensure_future(self._should_stop.wait())
        await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if preparing.done():
            return preparing.result()
        preparing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return None

    async def _watch(self, worker_id: str, prepared: Prepared) -> ExitStatus:
        """Starts a worker process and returns how it ended."""
        settings = self._context.settings
        process = self._process = WorkerProcess.start(
            prepared.python,
            lambda *descriptors: worker_environment(
                Assignment(self.spec, worker_id, prepared.model_dir, self.device, *descriptors),
                settings,
                self._threads,
            ),
            # Standard output is what becomes model_log.log.
            has_one_output=settings.log_files,
        )
        self._started_at = time.monotonic()
        deadline = asyncio.get_running_loop().call_later(
            self.spec.startup_timeout_s, self._kill_if_loading
        )
        try:
            return await process.watch(self._on_heard, self._on_report)
        finally:
            deadline.cancel()

    def _on_heard(self, report: Report) -> None:
        """Acts on the report before publishing it: Redis may be away."""
        if report.state is WorkerState.READY:
            self._ready_at = time.monotonic()
        elif report.state is WorkerState.FAILED:
            self._why_not_loaded = {
                "error": report.error,
                "traceback": report.traceback,
                "is_out_of_memory": report.is_out_of_memory,
            }

    async def _on_report(self, report: Report) -> None:
        process = self._process
        assert process is not None
        if report.state is WorkerState.STARTING:
            await self.record.set_state(report.state, pid=process.pid)
        elif report.state is WorkerState.FAILED:
            # The process ends by itself now; the slot decides whether to try again.
            await self.record.set_state(WorkerState.LOADING, **self._why_not_loaded)
        elif report.state is WorkerState.READY:
            await self._note_success(process, report)
        else:
            await self.record.set_state(report.state)

    async def _note_success(self, process: WorkerProcess, report: Report) -> None:
        assert self._ready_at is not None
        load_ms = int((self._ready_at - self._started_at) * 1000)
        if self._context.settings.is_logging_metrics:
            log_load_time(str(self.record.worker_id), self.spec.key, load_ms)
        log.info("ready model=%s version=%s worker=%s", *self.spec.key, self.record.worker_id)
        await self.record.set_state(
            WorkerState.READY,
            error="",
            traceback="",
            reason="",
            is_out_of_memory=False,
            failures=0,
            memory_bytes=process.resident_bytes,
            load_ms=load_ms,
            interface=report.interface,
        )
        await self.record.beat(str(self.record.worker_id))

    def _kill_if_loading(self) -> None:
        if self._ready_at is None and self._process is not None:
            limit = f"startup_timeout of {self.spec.startup_timeout_s:g} s"
            log.error("model=%s version=%s did not load within %s", *self.spec.key, limit)
            self._process.kill(f"did not load within {limit}")

    async def _announce_successor(self) -> None:
        """Lists the next worker before the dead one is forgotten, so that no request is refused.

        Not after a second start in a row that failed: the next one may not serve either. A worker
        that was READY may have died of a request; if not, its next state hides the successor.
        """
        has_started = self._ready_at is not None or self._backoff.failures == 0
        if has_started and not self._should_stop.is_set():
            await self.record.expect(self._new_id())

    async def _take_back(self, worker_id: str, ended: ExitStatus) -> int:
        # With any exit status: a worker that ended between batches holds nothing, and a handler may
        # call `sys.exit()`.
        is_stopping = self._should_stop.is_set()
        mode = ReclaimMode.RELEASED if is_stopping else ReclaimMode.CRASHED
        reason = "out_of_resources" if ended.is_out_of_memory else "worker_crashed"
        count: int = await self.record.retry(
            self._context.queue.reclaim, self.spec.key, worker_id, mode, reason
        )
        if count:
            log.warning(
                "reclaimed model=%s version=%s worker=%s requests=%d exit=%d",
                *self.spec.key,
                worker_id,
                count,
                ended.code,
            )
        return count

    async def _judge(self, ended: ExitStatus, *, was_at_work: bool) -> None:
        was_ready_s = time.monotonic() - self._ready_at if self._ready_at else 0.0
        if self._ready_at is not None and ended.code == EXIT_LOAD_FAILED:
            ended = ExitStatus(ended.code, "its handler ended it")  # with a code of ours by chance
        # Requests that kill workers are bounded by their attempts.
        if was_at_work or was_ready_s >= PROVEN_AFTER_S:
            self._backoff.succeed()
        log.warning(
            "worker died model=%s version=%s worker=%s exit=%s after_ready_s=%.1f",
            *self.spec.key,
            self.record.worker_id,
            ended,
            was_ready_s,
        )
        if self._ready_at is not None:
            await self._note_failure(error="")
            return
        seen = {
            "error": ended.cause or f"exit status {ended}",
            "is_out_of_memory": ended.is_out_of_memory,
        }
        await self._note_failure(**{**seen, **self._why_not_loaded})

    async def _note_failure(
        self,
        *,
        error: str,
        traceback: str = "",
        reason: str = "",
        is_out_of_memory: bool = False,
    ) -> None:
        self._backoff.fail(time.monotonic())
        await self.record.set_state(
            WorkerState.STARTING,
            pid=0,
            error=error,
            traceback=traceback,
            reason=reason,
            failures=self._backoff.failures if error else 0,
            is_out_of_memory=is_out_of_memory,
        )


def _with_cause(error: ServeError) -> str:
    """Returns the error's text with that of the system's error, such as a full disk."""
    cause = error.__cause__
    reason = (isinstance(cause, OSError) and cause.strerror) or ""
    return f"{error.message} ({reason})" if reason not in error.message else error.message
