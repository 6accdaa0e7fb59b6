"""Keeps one worker process of one model version alive: one slot of a node.

    STARTING → LOADING → READY, and STARTING again once it has died; FAILED once it is given up

When a process dies, its requests are taken back first of all.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from batching.errors import DependenciesFailed, ServeError
from batching.metrics import log_load_time
from batching.models.spec import ModelSpec, VersionKey
from batching.models.statuses import WorkerState, WorkerStatus, utc_now
from batching.process.cores import usable_cores
from batching.process.retries import Backoff
from batching.settings.settings import Settings
from batching.store.background_tasks import end_tasks
from batching.store.node_queue import NodeQueue, ReclaimMode
from batching.store.redis_errors import AWAY, OutageLog
from workers.archives.model_files import Prepared
from workers.machine import Device
from workers.slots.assignment import EXIT_LOAD_FAILED, EXIT_NOT_STARTED, Assignment, ExitStatus
from workers.slots.worker_process import WorkerProcess, WorkerReport, worker_environment

log = logging.getLogger(__name__)

RETRY_S = 0.1
MOST_UNPUBLISHED = 16  # reports of one worker, which has three; model code may write any number
PROVEN_AFTER_S = 2.0  # a worker that was READY for this time has not died of its start
KILL_MARGIN_S = 1.2
FAREWELL_S = 0.4  # to give back what was held
_NO_FAILURE = {"error": "", "traceback": "", "reason": "", "is_out_of_memory": False}


@dataclass(frozen=True, slots=True)
class SlotContext:
    node_id: str
    settings: Settings
    queue: NodeQueue
    sequence: "itertools.count[int]"
    prepare: Callable[..., Awaitable[Prepared]]
    outage: OutageLog
    memory_mark: str = ""  # of the memory that workers share with ingresses


@dataclass(eq=False)
class Slot:
    context: SlotContext
    spec: ModelSpec
    number: int
    device: Device
    threads: int
    _backoff: Backoff = field(default_factory=Backoff, init=False)
    _process: WorkerProcess | None = field(default=None, init=False)
    _ready_at: float | None = field(default=None, init=False)
    _why_not_loaded: dict[str, Any] = field(default_factory=dict, init=False)
    _unpublished: asyncio.Queue[WorkerReport] = field(default_factory=asyncio.Queue, init=False)
    _is_hopeless: bool = field(default=False, init=False)
    _should_stop: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        context = self.context
        self.record = SlotRecord(context.queue, context.outage, self.spec.key, self._backoff)

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
                way_out = "register it again, or scale it to 0 and back"
                log.error("given up model=%s version=%s: %s", *self.spec.key, way_out)
                await self.record.set_state(WorkerState.FAILED)
                # Unless another worker of the version lives, no request waits for one any more.
                refuse = self.context.queue.refuse_waiting
                if count := await self.record.retry(refuse, self.spec.key, "no_worker"):
                    log.warning("refused model=%s version=%s requests=%d", *self.spec.key, count)
                await self._should_stop.wait()
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._should_stop.wait(), self._backoff.delay_s)
        await self.record.end()

    def _new_id(self) -> str:
        """Returns a worker's id, from which ingresses see whose memory it can read."""
        context = self.context
        return f"{context.node_id}-{next(context.sequence)}{context.memory_mark}"

    async def _live_once(self) -> None:
        worker_id = self.record.successor_id or self._new_id()
        # The first worker of a registration begins without files that earlier ones have left, as in
        # TorchServe; so does one after another that did not load, perhaps because of them.
        is_exact = self._ready_at is None
        self._ready_at = None
        self._why_not_loaded = {}
        last = self.record.status
        # Before the archive is unpacked: requests may queue for a worker that has yet to load.
        await self.record.begin(
            WorkerStatus(
                worker_id=worker_id,
                node_id=self.context.node_id,
                slot=self.number,
                state=WorkerState.STARTING,
                pid=0,
                device=str(self.device),
                started_at=utc_now(),
                failures=self._backoff.failures,
                error=last.error if last else "",
                traceback=last.traceback if last else "",
                is_out_of_memory=last is not None and last.is_out_of_memory,
            )
        )
        try:
            prepared = await self._prepared(is_exact=is_exact)
        except Exception as error:
            # If it ended the slot, that would be opened again at once, hundreds of times a second.
            await self._note_unprepared(error)
            return
        if prepared is None or self._should_stop.is_set():
            return
        try:
            ended = await self._watch(worker_id, prepared)
        except OSError as error:
            # No descriptor, process or memory is left: a start that failed as any other.
            log.error("model=%s version=%s cannot run a worker: %s", *self.spec.key, error)
            ended = ExitStatus(EXIT_NOT_STARTED, error.strerror or str(error))
        # The next worker is listed before the dead one is forgotten, so that no request is refused.
        # Not after a second start in a row that failed: the next one may not serve either. A worker
        # that was READY may have died of a request; if not, its next state hides the successor.
        has_started = self._ready_at is not None or self._backoff.failures == 0
        if has_started and not self._should_stop.is_set():
            await self.record.expect(self._new_id())
        count = await self._take_back(worker_id, ended)
        if not self._should_stop.is_set():
            await self._judge(ended, was_at_work=count > 0)

    async def _prepared(self, *, is_exact: bool) -> Prepared | None:
        """Returns what a process needs; None if the slot is to stop meanwhile.

        A download then goes on without this slot, for the next slot that needs it.
        """
        preparing = asyncio.ensure_future(self.context.prepare(self.spec, is_exact=is_exact))
        stopping = asyncio.ensure_future(self._should_stop.wait())
        await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if preparing.done():
            return preparing.result()
        preparing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return None

    async def _note_unprepared(self, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, ServeError) else error
        of_system = cause.strerror if isinstance(cause, OSError) else None  # such as a full disk
        message, reason = of_system or str(error), ""
        if isinstance(error, ServeError):
            message, reason = error.message, error.reason
            if of_system and of_system not in message:
                message += f" ({of_system})"
            # An installation takes minutes and fails again, until the model is registered again.
            # A disk may have room again by itself, as for an archive.
            self._is_hopeless = isinstance(error, DependenciesFailed) and not of_system
        is_foreseen = bool(reason or of_system)
        template = "model=%s version=%s cannot be prepared: %s"
        log.error(template, *self.spec.key, message, exc_info=None if is_foreseen else error)
        await self._note_failure(error=message, reason=reason)

    async def _watch(self, worker_id: str, prepared: Prepared) -> ExitStatus:
        """Starts a worker process and returns how it ended."""
        settings = self.context.settings
        process = self._process = WorkerProcess.start(
            prepared.python,
            lambda *descriptors: worker_environment(
                Assignment(self.spec, worker_id, prepared.model_dir, self.device, *descriptors),
                settings,
                self.threads,
            ),
            # Standard output is what becomes model_log.log.
            has_one_output=settings.log_files,
        )
        deadline = asyncio.get_running_loop().call_later(
            self.spec.startup_timeout_s, self._kill_if_loading, process
        )
        self._unpublished = asyncio.Queue()
        publishing = asyncio.create_task(self._publish_reports(process))
        try:
            return await process.watch(self._on_report)
        finally:
            deadline.cancel()
            await end_tasks([publishing])

    def _kill_if_loading(self, process: WorkerProcess) -> None:
        if self._ready_at is None:
            limit = f"startup_timeout of {self.spec.startup_timeout_s:g} s"
            log.error("model=%s version=%s did not load within %s", *self.spec.key, limit)
            process.kill(f"did not load within {limit}")

    def _on_report(self, report: WorkerReport) -> None:
        """Acts on the report before it is published: Redis may be away."""
        if report.state is WorkerState.READY:
            self._ready_at = time.monotonic()
        elif report.state is WorkerState.FAILED:
            self._why_not_loaded = {
                "error": report.error,
                "traceback": report.traceback,
                "is_out_of_memory": report.is_out_of_memory,
            }
        if self._unpublished.qsize() < MOST_UNPUBLISHED:
            self._unpublished.put_nowait(report)

    async def _publish_reports(self, process: WorkerProcess) -> None:
        await self.record.set_state(WorkerState.STARTING, pid=process.pid)
        while True:
            report = await self._unpublished.get()
            if report.state is WorkerState.FAILED:  # what that means, `_judge` decides
                continue
            if report.state is not WorkerState.READY:
                await self.record.set_state(report.state)
                continue
            assert self._ready_at is not None
            worker_id = str(self.record.worker_id)
            load_ms = int((self._ready_at - process.started_at) * 1000)
            if self.context.settings.is_logging_metrics:
                log_load_time(worker_id, self.spec.key, load_ms)
            log.info("ready model=%s version=%s worker=%s", *self.spec.key, worker_id)
            await self.record.set_state(
                WorkerState.READY,
                **_NO_FAILURE,
                failures=0,
                memory_bytes=process.resident_bytes,
                load_ms=load_ms,
                interface=report.interface,
            )
            await self.record.beat(worker_id)

    async def _take_back(self, worker_id: str, ended: ExitStatus) -> int:
        # With any exit status: a worker that ended between batches holds nothing, and a handler may
        # call `sys.exit()`.
        is_stopping = self._should_stop.is_set()
        mode = ReclaimMode.RELEASED if is_stopping else ReclaimMode.CRASHED
        reason = "out_of_resources" if ended.is_out_of_memory else "worker_crashed"
        reclaim = self.context.queue.reclaim
        count: int = await self.record.retry(reclaim, self.spec.key, worker_id, mode, reason)
        if count:
            log.warning(
                "reclaimed model=%s version=%s worker=%s requests=%d exit=%d",
                *(*self.spec.key, worker_id, count, ended.code),
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
            *(*self.spec.key, self.record.worker_id, ended, was_ready_s),
        )
        error, is_out_of_memory = ended.cause or f"exit status {ended}", ended.is_out_of_memory
        why = {"error": error, "is_out_of_memory": is_out_of_memory} | self._why_not_loaded
        await self._note_failure(**({"error": ""} if self._ready_at is not None else why))

    async def _note_failure(self, **why: Any) -> None:
        self._backoff.fail(time.monotonic())
        failures = self._backoff.failures if why["error"] else 0
        changes = {**_NO_FAILURE, **why, "pid": 0, "failures": failures}
        await self.record.set_state(WorkerState.STARTING, **changes)


@dataclass(eq=False)
class SlotRecord:
    """Keeps the status of one slot's worker in Redis, under the worker's name.

    Only a worker that serves, or will probably serve soon, is listed as alive. Others are hidden:
    their status can be seen, but no request is queued for them.
    """

    queue: NodeQueue
    outage: OutageLog
    key: VersionKey
    backoff: Backoff
    status: WorkerStatus | None = field(default=None, init=False)
    successor_id: str | None = field(default=None, init=False)

    @property
    def worker_id(self) -> str | None:
        return self.status.worker_id if self.status else None

    @property
    def state(self) -> WorkerState:
        return self.status.state if self.status else WorkerState.STARTING

    @property
    def is_expected(self) -> bool:
        """Returns whether the worker serves, or will probably serve soon: requests may queue."""
        is_coming = self.state in (WorkerState.STARTING, WorkerState.LOADING)
        return self.state is WorkerState.READY or (is_coming and not self.backoff.is_doubtful)

    async def begin(self, status: WorkerStatus) -> None:
        """Puts a new worker in the place of the former one.

        Lists it as alive before it forgets the former one, so that one of them always is listed.
        """
        previous_id, self.status = self.worker_id, status
        self.successor_id = None
        await self.beat(status.worker_id)
        await self.set_state(status.state)
        if previous_id is not None:
            await self.retry(self.queue.forget, self.key, previous_id)

    async def set_state(self, state: WorkerState, **changes: Any) -> None:
        assert self.status is not None
        self.status = replace(self.status, state=state, **changes)
        await self.retry(self.queue.report, self.key, self.status)
        if not self.is_expected:
            for worker_id in self._worker_ids():
                await self.retry(self.queue.hide, self.key, worker_id)

    async def expect(self, successor_id: str) -> None:
        """Lists the slot's next worker as alive, beside the current one, before it begins.

        A state that is not expected hides both.
        """
        self.successor_id = successor_id
        await self.beat(successor_id)

    async def beat(self, worker_id: str) -> None:
        """Lists the worker as alive, unless the slot has been given up."""
        if self.is_expected:
            await self.retry(self.queue.beat, {self.key: [worker_id]})

    async def report_again(self, **changes: Any) -> None:
        """Publishes the status with these changes; raises if Redis does not answer."""
        if self.status is None:
            return
        status = self.status = replace(self.status, **changes)
        await self.queue.report(self.key, status)
        if self.worker_id != status.worker_id:  # it has ended, and been forgotten, meanwhile
            await self.queue.forget(self.key, status.worker_id)

    async def end(self) -> None:
        last_ids, self.status = self._worker_ids(), None
        for worker_id in last_ids:
            await self.retry(self.queue.forget, self.key, worker_id)

    async def retry(self, verb: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Calls the verb until Redis answers; only for verbs that may be repeated."""
        name = getattr(verb, "__name__", str(verb))
        while True:
            try:
                result = await verb(*arguments)
            except AWAY as error:
                self.outage.note(name, error)
                await asyncio.sleep(RETRY_S)
            else:
                self.outage.over(name)
                return result

    def _worker_ids(self) -> list[str]:
        return [worker_id for worker_id in (self.worker_id, self.successor_id) if worker_id]


@dataclass
class Slots:
    """Opens and stops the slots of one node as the registry wants; drains them in the end."""

    context: SlotContext
    gpus: Sequence[int]
    on_ended: Callable[[], None]
    _gpu_turn: "itertools.count[int]" = field(default_factory=itertools.count, init=False)
    _slots: dict[tuple[VersionKey, int], Slot] = field(default_factory=dict, init=False)
    _tasks: dict[tuple[VersionKey, int], asyncio.Task[None]] = field(
        default_factory=dict, init=False
    )
    _is_draining: bool = field(default=False, init=False)

    def all(self) -> list[Slot]:
        return list(self._slots.values())

    def follow(self, specs: Mapping[VersionKey, ModelSpec]) -> None:
        """Opens and stops slots as these versions want; does nothing in a drain."""
        if self._is_draining:
            return
        for (key, number), slot in self._slots.items():
            spec = specs.get(key)
            if not (spec and number < spec.min_worker and spec.is_same_registration(slot.spec)):
                slot.stop()
        workers = sum(spec.min_worker for spec in specs.values())
        threads = max(1, usable_cores() // max(1, workers))
        for spec in specs.values():
            for number in range(spec.min_worker):
                slot_key = (spec.key, number)
                if slot_key in self._slots:
                    continue
                slot = Slot(self.context, spec, number, self._pick_device(spec, number), threads)
                task = asyncio.create_task(slot.run(), name=f"slot {spec.key} {number}")
                self._slots[slot_key], self._tasks[slot_key] = slot, task
                task.add_done_callback(partial(self._note_end, slot_key))

    async def drain(self, must_exit_now: asyncio.Event) -> None:
        """Ends all workers within the drain time and releases the requests that they leave."""
        self._is_draining = True
        for slot in self.all():
            slot.stop()
        if not self._tasks:
            return
        log.info("node=%s draining workers=%d", self.context.node_id, len(self._tasks))
        ended = asyncio.gather(*self._tasks.values(), return_exceptions=True)
        margin_s = max(0.0, self.context.settings.drain_timeout_s - KILL_MARGIN_S)
        forced = asyncio.ensure_future(must_exit_now.wait())
        outcomes: set[asyncio.Future[Any]] = {ended, forced}
        await asyncio.wait(outcomes, timeout=margin_s, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        for slot in self.all():
            slot.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended, timeout=FAREWELL_S)

    def _note_end(self, slot_key: tuple[VersionKey, int], task: "asyncio.Task[None]") -> None:
        del self._slots[slot_key], self._tasks[slot_key]
        if not task.cancelled() and (error := task.exception()):
            log.error("slot %s ended: %r", slot_key, error, exc_info=error)
        else:
            # After an error, which may come again at once, the regular look is soon enough.
            self.on_ended()

    def _pick_device(self, spec: ModelSpec, number: int) -> Device:
        """Picks GPUs in turn over all models, or over the version's own list.

        Source: TorchServe 0.12 ModelManager / WorkLoadManager "assignedGpuIds".
        """
        gpus = [gpu for gpu in spec.device_ids if gpu in self.gpus] or self.gpus
        if spec.device_type == "cpu" or not gpus:
            return Device("cpu", None)
        turn = number if spec.device_ids else next(self._gpu_turn)
        return Device("cuda", gpus[turn % len(gpus)])
