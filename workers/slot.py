"""One worker slot of a node: keeps one worker process of one model version alive.

    STARTING → LOADING → READY, and STARTING again once it has died; FAILED once it is given up

When a process dies its requests are taken back at once, before anything else is done.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batching.backoff import Backoff
from batching.errors import DependenciesFailed, ServeError
from batching.metric_lines import log_load_time
from batching.model_spec import ModelSpec
from batching.settings import Settings
from batching.status import WorkerState, WorkerStatus, utc_now
from batching.store.node_verbs import NodeVerbs
from batching.store.outage import Outage
from batching.store.reclaiming import ReclaimMode
from batching.store.redis_errors import AWAY
from workers.assignment import Assignment
from workers.devices import Device
from workers.exit_status import EXIT_NOT_STARTED, ExitStatus
from workers.model_files import Prepared
from workers.worker_environment import worker_environment
from workers.worker_process import Report, WorkerProcess

log = logging.getLogger(__name__)

PROVEN_AFTER_S = 2.0  # a worker that was READY for so long has not died of its start
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class SlotContext:
    """What the slots of a node share."""

    node_id: str
    settings: Settings
    verbs: NodeVerbs
    sequence: "itertools.count[int]"
    prepare: Callable[[ModelSpec], Awaitable[Prepared]]
    compat_dir: Path
    outage: Outage = field(default_factory=lambda: Outage(log))


class Slot:
    """Runs, watches, restarts and stops one worker process."""

    def __init__(
        self, context: SlotContext, spec: ModelSpec, number: int, device: Device, threads: int
    ) -> None:
        self.spec = spec
        self.number = number
        self.device = device
        self._context = context
        self._threads = threads
        self._status: WorkerStatus | None = None
        self._process: WorkerProcess | None = None
        self._started_at = 0.0
        self._ready_at: float | None = None
        self._why_not_loaded: dict[str, Any] = {}
        self._backoff = Backoff()
        self._successor_id: str | None = None
        self._is_hopeless = False
        self._should_stop = asyncio.Event()

    @property
    def worker_id(self) -> str | None:
        """The current process' name."""
        return self._status.worker_id if self._status else None

    @property
    def state(self) -> WorkerState:
        """Where the slot is in its life."""
        return self._status.state if self._status else WorkerState.STARTING

    @property
    def is_expected(self) -> bool:
        """Whether it serves now or can be counted on to serve soon, so that requests may queue."""
        if self.state is WorkerState.READY:
            return True
        is_coming = self.state in (WorkerState.STARTING, WorkerState.LOADING)
        return is_coming and not self._backoff.is_doubtful

    def is_for(self, spec: ModelSpec) -> bool:
        """Whether it serves this registration."""
        return self.spec.is_same_registration(spec)

    def stop(self) -> None:
        """The process is asked to finish its batch and end; `run` returns after that."""
        self._should_stop.set()
        if self._process is not None:
            self._process.terminate()

    async def report_again(self) -> None:
        """Everybody sees the slot's state, also after Redis was emptied."""
        if (status := self._status) is not None:
            await self._context.verbs.report(self.spec.key, status)
            if self.worker_id != status.worker_id:  # it has ended, and been forgotten, meanwhile
                await self._context.verbs.forget(self.spec.key, status.worker_id)

    async def measure(self) -> None:
        """Everybody sees how much memory the process holds now."""
        if self._status is not None and self.state is WorkerState.READY and self._process:
            self._status = replace(self._status, memory_bytes=self._process.resident_bytes)
            await self.report_again()

    def kill(self) -> None:
        """The process ends now; what it held is released."""
        self._should_stop.set()
        if self._process is not None:
            self._process.kill()

    async def run(self) -> None:
        """Keeps a worker alive until `stop`, or until it has failed for too long."""
        while not self._should_stop.is_set():
            await self._live_once()
            if self._should_stop.is_set():
                break
            limit_s = self.spec.max_retry_timeout_s
            if self._is_hopeless or self._backoff.has_failed_for(limit_s, time.monotonic()):
                log.error("given up model=%s version=%s: register or scale it anew", *self.spec.key)
                await self._set_state(WorkerState.FAILED)
                # Unless another worker of the version lives, nobody waits for one any more.
                await self._retry(self._context.verbs.refuse_waiting, self.spec.key, "no_worker")
                await self._should_stop.wait()
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._should_stop.wait(), self._backoff.delay_s)
        last_ids, self._status = self._worker_ids(), None
        for worker_id in last_ids:
            await self._retry(self._context.verbs.forget, self.spec.key, worker_id)

    def _worker_ids(self) -> list[str]:
        """The current process' name, and its successor's."""
        ids = (self.worker_id, self._successor_id)
        return [worker_id for worker_id in ids if worker_id is not None]

    def _new_id(self) -> str:
        return f"{self._context.node_id}-{next(self._context.sequence)}"

    async def _beat(self, worker_id: str) -> None:
        if self.is_expected:
            await self._retry(self._context.verbs.beat, {self.spec.key: [worker_id]})

    async def _live_once(self) -> None:
        worker_id, self._successor_id = self._successor_id or self._new_id(), None
        previous = self._status
        self._ready_at = None
        self._why_not_loaded = {}
        self._status = WorkerStatus(
            worker_id=worker_id,
            node_id=self._context.node_id,
            slot=self.number,
            state=WorkerState.STARTING,
            pid=0,
            device=str(self.device),
            started_at=utc_now(),
            failures=self._backoff.failures,
            error=previous.error if previous else "",
            is_out_of_memory=previous.is_out_of_memory if previous else False,
        )
        # Before the archive is unpacked: requests may queue for a worker that has yet to load.
        await self._beat(worker_id)
        await self._set_state(WorkerState.STARTING)
        if previous is not None:
            await self._retry(self._context.verbs.forget, self.spec.key, previous.worker_id)
        try:
            prepared = await self._prepared()
        except ServeError as error:
            log.error("model=%s version=%s: %s", *self.spec.key, error.message)
            # Installing takes minutes and fails again; whoever mends it registers the model anew.
            self._is_hopeless = isinstance(error, DependenciesFailed)
            await self._note_failure(error=_with_cause(error), reason=error.reason)
            return
        except OSError as error:
            log.error("model=%s version=%s cannot be prepared: %s", *self.spec.key, error)
            await self._note_failure(error=error.strerror or str(error))
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

    async def _prepared(self) -> Prepared | None:
        """What a process needs; None once the slot is to stop, which waits for no download.

        What has been begun goes on without it, for whoever needs it next.
        """
        preparing = asyncio.ensure_future(self._context.prepare(self.spec))
        stopping = asyncio.ensure_future(self._should_stop.wait())
        await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if preparing.done():
            return preparing.result()
        preparing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return None

    async def _watch(self, worker_id: str, prepared: Prepared) -> ExitStatus:
        """How a worker process ended that was started and watched.

        Raises:
            OSError: the system would not have it started or watched; it is gone.
        """
        process = self._process = WorkerProcess.start(
            prepared.python,
            lambda status_fd: self._environment(
                Assignment(self.spec, worker_id, prepared.model_dir, self.device, status_fd)
            ),
            # Standard output is what becomes model_log.log.
            has_one_output=self._context.settings.log_files,
        )
        self._started_at = time.monotonic()
        deadline = asyncio.get_running_loop().call_later(
            self.spec.startup_timeout_s, self._kill_if_loading
        )
        try:
            return await process.watch(self._on_report)
        finally:
            deadline.cancel()

    def _environment(self, assignment: Assignment) -> dict[str, str]:
        context = self._context
        return worker_environment(assignment, context.settings, context.compat_dir, self._threads)

    async def _on_report(self, report: Report) -> None:
        process = self._process
        assert process is not None
        if report.state is WorkerState.STARTING:
            await self._set_state(report.state, pid=process.pid)
        elif report.state is WorkerState.FAILED:
            # The process ends by itself now; the slot decides whether to try again.
            self._why_not_loaded = {
                "error": report.error,
                "is_out_of_memory": report.is_out_of_memory,
            }
            await self._set_state(WorkerState.LOADING, **self._why_not_loaded)
        elif report.state is WorkerState.READY:
            await self._note_success(process)
        else:
            await self._set_state(report.state)

    async def _note_success(self, process: WorkerProcess) -> None:
        self._ready_at = time.monotonic()
        load_ms = int((self._ready_at - self._started_at) * 1000)
        if self._context.settings.is_logging_metrics:
            log_load_time(str(self.worker_id), self.spec.key, load_ms)
        log.info("ready model=%s version=%s worker=%s", *self.spec.key, self.worker_id)
        await self._set_state(
            WorkerState.READY,
            error="",
            reason="",
            is_out_of_memory=False,
            failures=0,
            memory_bytes=process.resident_bytes,
            load_ms=load_ms,
        )
        await self._beat(str(self.worker_id))

    def _kill_if_loading(self) -> None:
        if self._ready_at is None and self._process is not None:
            limit = f"startup_timeout of {self.spec.startup_timeout_s:g} s"
            log.error("model=%s version=%s did not load within %s", *self.spec.key, limit)
            self._process.kill(f"did not load within {limit}")

    async def _announce_successor(self) -> None:
        """Somebody is expected before the dead worker is forgotten, so nobody is refused between.

        Not after a second start in a row that failed: then nobody knows whether the next one will
        serve. One that was READY may have died of a request; if not, `_set_state` hides the
        successor.
        """
        has_started = self._ready_at is not None or self._backoff.failures == 0
        if has_started and not self._should_stop.is_set():
            self._successor_id = self._new_id()
            await self._beat(self._successor_id)

    async def _take_back(self, worker_id: str, ended: ExitStatus) -> int:
        # Whatever its exit status: a worker that ended between batches holds nothing, and a handler
        # may have said `sys.exit()`.
        is_stopping = self._should_stop.is_set()
        mode = ReclaimMode.RELEASED if is_stopping else ReclaimMode.CRASHED
        reason = "out_of_resources" if ended.is_out_of_memory else "worker_crashed"
        count: int = await self._retry(
            self._context.verbs.reclaim, self.spec.key, worker_id, mode, reason
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
        # What kills workers at their work is bounded by the attempts of a request.
        if was_at_work or was_ready_s >= PROVEN_AFTER_S:
            self._backoff.succeed()
        log.warning(
            "worker died model=%s version=%s worker=%s exit=%s after_ready_s=%.1f",
            *self.spec.key,
            self.worker_id,
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
        self, *, error: str, reason: str = "", is_out_of_memory: bool = False
    ) -> None:
        self._backoff.fail(time.monotonic())
        assert self._status is not None
        await self._set_state(
            WorkerState.STARTING,
            pid=0,
            error=error,
            reason=reason,
            failures=self._backoff.failures if error else 0,
            is_out_of_memory=is_out_of_memory,
        )

    async def _set_state(self, state: WorkerState, **changes: Any) -> None:
        assert self._status is not None
        self._status = replace(self._status, state=state, **changes)
        await self._retry(self._context.verbs.report, self.spec.key, self._status)
        if not self.is_expected:
            for worker_id in self._worker_ids():
                await self._retry(self._context.verbs.hide, self.spec.key, worker_id)

    async def _retry(self, verb: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """The verb's result, once Redis answers; all of them may be repeated."""
        while True:
            try:
                return await verb(*arguments)
            except AWAY as error:
                self._context.outage.note(getattr(verb, "__name__", str(verb)), error)
                await asyncio.sleep(RETRY_S)


def _with_cause(error: ServeError) -> str:
    """The error's text, and what the system had to say: that the disk is full, say."""
    cause = error.__cause__
    words = cause.strerror if isinstance(cause, OSError) else ""
    return f"{error.message} ({words})" if words else error.message
