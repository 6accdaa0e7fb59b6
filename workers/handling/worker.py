"""One worker process: loads one model version, then gather → run → reply until told to stop.

Shutdown order: stop claiming, finish the batch, reply, exit. The node goes on beating until the
process is gone, so that its requests are not taken for lost; then it releases the rest of them.

The process never beats by itself: a handler that is busy in C++ would keep it from that.
"""

import contextlib
import ctypes
import faulthandler
import gc
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from batching.batcher import Batcher
from batching.errors import InternalError
from batching.metrics import Measurement, model_metric_log, read_metrics_config
from batching.policy import policy_of
from batching.process.logs import configure_logging, text_of
from batching.protocol import INLINE_LIMIT_BYTES, Batch, Owned, Reply
from batching.settings.loading import load_settings
from batching.settings.settings import Settings
from batching.store.clients import BLOCK_S, connect, idle_s, store_url
from batching.store.records import error_reply
from batching.store.redis_errors import AWAY, OutageLog
from batching.store.worker_queue import WorkerQueue
from workers.archives.staging import hold
from workers.handling.handler_call import (
    STALL_MARGIN_S,
    BatchStream,
    ForkGuard,
    HandlerCall,
    JobReporter,
)
from workers.handling.handlers import LoadedModel, code_dir_of, load_model
from workers.handling.metrics_reporter import MetricsFile, MetricsReporter
from workers.handling.runner import (
    DeviceBroken,
    Runner,
    free_gpu_memory,
    sentence,
    user_traceback,
)
from workers.slots.assignment import (
    EXIT_DEVICE_BROKEN,
    EXIT_DRAINED,
    EXIT_LOAD_FAILED,
    SIGNAL_OF_LATE,
    WAIT_S,
    Assignment,
    Deadline,
)

log = logging.getLogger("workers.handling.worker")

MAX_ERROR_CHARS = 4000
MAX_INTERFACE_CHARS = 32 * 1024
NOT_TAKEN = InternalError("The request store does not take the model's answer.")
RETRY_S = 0.1
# For what a handler has the interpreter do at its end, and for giving a device's memory back.
END_S = 3.0
REPLY_PATIENCE_S = 30.0
# For this long after an error, a claim that was given up may arrive late: a network was cut, or
# a proxy in it, delivers late.
UNSURE_S = 10.0
LOOK_AGAIN_S = 1.0
# Always, if seldom: a server that took over may lease us requests that were answered long ago.
LOOK_S = 10.0
MEMORY_LOOK_S = 3.0
# Memory beyond what batches were seen to need is given back at the next look. The rest is tried at
# growing intervals: to fetch an ordinary batch's memory again costs up to a tenth of its run.
MEMORY_PAUSE_S = 60.0


def taken_bytes() -> int:
    """Returns this process's own memory, without mapped files, and what torch holds of GPUs."""
    taken = 0
    with contextlib.suppress(OSError):  # no Linux
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        taken = (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        taken += sum(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))
    return taken


def give_back_memory() -> None:
    """Gives freed memory back: glibc's, and torch's on GPUs."""
    free_gpu_memory()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class SpareMemory:
    """Has a worker give memory back when it holds more than its batches need.

    The worker calls `look` at `look_at_s` (monotonic), and sets `has_run` after a batch.
    """

    def __init__(
        self,
        spare_bytes: int,
        taken: Callable[[], int] = taken_bytes,
        give_back: Callable[[], None] = give_back_memory,
    ) -> None:
        """Lets the worker keep `spare_bytes` beyond what batches need; with 0, everything."""
        self.look_at_s = 0.0 if spare_bytes else math.inf
        self.has_run = False  # a batch, since memory was given back
        self._spare_bytes = spare_bytes
        self._taken = taken
        self._give_back = give_back
        self._again_at_s = 0.0
        self._pause_s = MEMORY_LOOK_S
        self._least = 0  # bytes, after the last time
        self._usual: int | None = 0  # bytes with what batches need; None: not seen since then

    def look(self, now_s: float) -> None:
        self.look_at_s = now_s + MEMORY_LOOK_S
        taken = self._taken()
        if self._usual is None and self.has_run:
            self._usual = taken
        usual = self._least if self._usual is None else self._usual
        is_beyond = taken > usual + self._spare_bytes
        if is_beyond or (now_s >= self._again_at_s and taken > self._least + self._spare_bytes):
            self._give_back()
            self._least, self._usual, self.has_run = self._taken(), None, False
            self._pause_s = MEMORY_LOOK_S if is_beyond else min(2 * self._pause_s, MEMORY_PAUSE_S)
            self._again_at_s = now_s + self._pause_s


Unsent = Callable[[], AbstractContextManager[Sequence[Measurement]]]


@dataclass
class Worker:
    batcher: Batcher
    queue: WorkerQueue
    run: Callable[[Batch], list[Reply]]
    outage: OutageLog
    is_broken: Callable[[], bool] = lambda: False
    unsent: Unsent = lambda: contextlib.nullcontext(())
    deadline: Deadline = field(default_factory=Deadline)
    memory: SpareMemory = field(default_factory=partial(SpareMemory, 0))
    idle_s: float = BLOCK_S
    look_s: float = LOOK_S
    reply_patience_s: float = REPLY_PATIENCE_S
    _should_stop: bool = field(default=False, init=False)
    _unsure_until: float = field(default=0.0, init=False)
    _look_at: float = field(default=0.0, init=False)

    def stop(self, _signum: int = 0, _frame: FrameType | None = None) -> None:
        """Stops claiming; `serve` finishes the running batch. Safe as a signal handler."""
        self._should_stop = True
        self.queue.interrupt()

    def serve(self) -> None:
        """Runs and answers batches until it is stopped.

        Raises:
            DeviceBroken: the last batch has no answers; its requests are tried again, one by one.
        """
        while not self._should_stop and not self.is_broken():
            try:
                batch = self._gather()
                self.outage.over("claim")
                if batch is not None:
                    self.deadline.run()
                    started_s = time.monotonic()
                    replies = self.run(batch)
                    run_ms = (time.monotonic() - started_s) * 1000
                    self.memory.has_run = True
                    self._reply([item.owned for item in batch.items], replies)
                    now_s = time.monotonic()
                    self.batcher.observe(batch, now_s - started_s, now_s)
                    log.debug("replied batch=%d run_ms=%.1f", len(batch), run_ms)
                if (now_s := time.monotonic()) >= self.memory.look_at_s:
                    self.memory.look(now_s)
            except AWAY as error:
                # The claim may have been carried out and only its answer lost.
                self._unsure_until = time.monotonic() + UNSURE_S
                # Or the batch has failed and could not be read again: it is given back, too.
                self.outage.note("claim", error)
                time.sleep(RETRY_S)

    def _gather(self) -> Batch | None:
        now_s = time.monotonic()
        is_unsure = now_s < self._unsure_until
        if is_unsure or now_s >= self._look_at:
            self.queue.recover()
            self.outage.over("recover", is_for_all=True)
            self.record_measured()
            self._look_at = now_s + (LOOK_AGAIN_S if is_unsure else self.look_s)
        end = min(self._look_at, self.memory.look_at_s)

        def should_stop() -> bool:
            self.deadline.look_for_work()
            return self._should_stop or time.monotonic() > end

        return self.batcher.gather(should_stop, BLOCK_S if is_unsure else self.idle_s)

    def record_measured(self) -> None:
        """Records what handlers have measured, and no reply has taken along."""
        with self.unsent() as measured:
            if measured:
                self.queue.record(measured)

    def _reply(self, items: Sequence[Owned], replies: Sequence[Reply]) -> None:
        """Publishes the replies; Redis recognises a repeated one, so sending again is safe."""
        end = time.monotonic() + self.reply_patience_s
        while True:
            self.deadline.wait()
            try:
                with self.unsent() as measured:
                    self.queue.reply(items, replies, measured)
                self.outage.over("reply")
                return
            except AWAY as error:
                # Requests that cannot be answered are given back before the next claim.
                self._unsure_until = time.monotonic() + UNSURE_S
                self.outage.note("reply", error)
                if time.monotonic() > end:
                    limit_s = self.reply_patience_s
                    log.error("reply failed for %.0f s, giving up: %s", limit_s, error)
                    break
                time.sleep(RETRY_S)
        with contextlib.suppress(*AWAY):  # while Redis takes nothing, nothing changes
            for item, reply in zip(items, replies, strict=True):
                self.deadline.wait()
                try:
                    self.queue.reply([item], [reply])
                except AWAY:
                    # To run a request again whose answer is too large would bring the same.
                    if len(reply.body) <= INLINE_LIMIT_BYTES:
                        raise
                    self.queue.reply([item], [error_reply(NOT_TAKEN)])


def main(assignment: Assignment, deadline: Deadline) -> int:
    settings, _ = load_settings()
    spec = assignment.spec
    configure_logging(
        settings.log_level,
        sys.stderr,  # a pipe, which the node always reads
        {"model": spec.model_name, "version": spec.model_version, "worker": assignment.worker_id},
    )
    faulthandler.enable()
    # The handler's stacks are written before the default action ends the process.
    faulthandler.register(SIGNAL_OF_LATE, all_threads=True, chain=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _report(assignment, state="LOADING")
    hold(assignment.model_dir)
    guard = ForkGuard()
    try:
        try:
            model = load_model(spec, assignment.model_dir, assignment.device, settings)
        finally:
            guard.end_fork()
    except BaseException as error:  # a handler may raise anything, SystemExit too
        text = text_of(error)
        # Where tracebacks are shown, whoever waits for the model shows this one.
        level = logging.INFO if settings.show_tracebacks else logging.ERROR
        log.log(level, "model=%s version=%s failed to load", *spec.key, exc_info=True)
        _report(
            assignment,
            state="FAILED",
            # The log has all of it; descriptions of the model have this.
            error=sentence(error, MAX_ERROR_CHARS),
            traceback=user_traceback(error, code_dir_of(spec, assignment.model_dir)),
            # Source: TorchServe 0.12 model_service_worker.
            is_out_of_memory=isinstance(error, MemoryError)
            or (isinstance(error, RuntimeError) and "CUDA" in text and "memory" in text),
        )
        return EXIT_LOAD_FAILED
    # The objects of loading stay: a collection that walks all of torch holds up a batch.
    gc.collect()
    gc.freeze()
    return _serve(assignment, settings, model, deadline)


def _serve(
    assignment: Assignment, settings: Settings, model: LoadedModel, deadline: Deadline
) -> int:
    spec = assignment.spec
    client = connect(store_url(settings))
    queue = WorkerQueue(
        client,
        spec.key,
        assignment.worker_id,
        int(settings.dead_after_s * 1000),
        (settings.shared_memory_dir, settings.shared_memory_bytes),
    )
    outage = OutageLog(log, settings.redis_url)
    reporter = MetricsReporter(
        model.context.own_metrics,
        read_metrics_config(settings.metrics_config),
        is_showing_all=settings.model_metrics_auto_detect or spec.decodes_itself,
        is_logging=settings.is_logging_metrics,
    )
    if settings.log_files:
        model_metric_log.addHandler(MetricsFile(settings))
    call = HandlerCall(model, settings)
    send = partial(queue.send, patience_s=spec.response_timeout_s)
    stall_s = settings.unread_timeout_s + STALL_MARGIN_S
    stream = BatchStream(call, send, deadline, outage, stall_s)
    model.context.keep_progress = JobReporter(call, queue.note_progress, outage).note
    runner = Runner(
        call,
        stream,
        deadline,
        queue.read_again,
        settings.max_response_size_bytes,
        shown_dir=model.code_dir if settings.show_tracebacks else None,
    )
    worker = Worker(
        Batcher(queue, policy_of(spec)),
        queue,
        runner.run,
        outage,
        lambda: runner.is_device_broken,
        reporter.unsent,
        deadline,
        SpareMemory(settings.spare_memory_bytes),
        idle_s(client),
    )
    _keep_from_forks()
    signal.signal(signal.SIGTERM, worker.stop)
    with contextlib.suppress(*AWAY):
        queue.prepare_to_record()
        worker.record_measured()
    deadline.wait()
    # Redis keeps it: examples may be large.
    is_small = len(json.dumps(model.interface)) <= MAX_INTERFACE_CHARS
    _report(assignment, state="READY", interface=model.interface if is_small else {})
    with contextlib.suppress(DeviceBroken):
        worker.serve()
    deadline.wait()
    with contextlib.suppress(*AWAY):
        worker.record_measured()
    queue.close()
    model.close()
    if runner.is_device_broken:
        log.error("model=%s version=%s: the device is broken in this process", *spec.key)
        return EXIT_DEVICE_BROKEN
    return EXIT_DRAINED


def _keep_from_forks() -> None:
    """Gives SIGTERM its default action in processes that a handler forks.

    `multiprocessing` ends its processes by SIGTERM, and a copy of `Worker.stop` would hang up our
    connections. SIGTERM is blocked around the fork, so that one that comes meanwhile is not lost.
    """

    def begin() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    block = partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGTERM})
    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=begin)


def _report(assignment: Assignment, **status: Any) -> None:
    os.write(assignment.status_fd, json.dumps(status).encode() + b"\n")


if __name__ == "__main__":
    # Without a spec, processes that a handler starts by multiprocessing find this module by its
    # path. From Python 3.14 on, those of one pool share that import, but not one by name.
    __spec__ = None  # type: ignore[assignment]
    _assignment = Assignment.from_environment()
    _spec = _assignment.spec
    _wait_s = WAIT_S + _spec.max_batch_delay_ms / 1000
    _deadline = Deadline(_assignment.deadline_fd, _spec.response_timeout_s, _wait_s)
    os.close(_assignment.deadline_fd)  # not for the handler's own processes
    try:
        sys.exit(main(_assignment, _deadline))
    finally:
        # Frozen objects are never freed, and libraries report them as leaks.
        gc.unfreeze()
        # The interpreter waits for every thread that is no daemon, and a handler's may run for
        # ever. Meanwhile no other worker could have this one's requests, place and device.
        _deadline.end(END_S)
