"""Starts the processes that run control jobs, when jobs wait."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable

from batching.process.child_process import exited, has_exited, kill_group, spawn
from batching.process.retries import Reminder
from batching.settings.settings import Settings
from batching.store.background_tasks import end_tasks
from batching.store.redis_errors import AWAY, OutageLog

log = logging.getLogger(__name__)

MODULE = "workers.control_jobs"
LOOK_S = 5.0  # jobs are announced; this is for an announcement that was lost
# A job that waits for longer than a process takes to begin has found the others busy: one may be at
# a download for many minutes.
PATIENCE_S = 2.0
MOST_PROCESSES = 2
STOP_S = 2.0


class ControlProcesses:
    """Starts processes for control jobs when one waits, MOST_PROCESSES at a time."""

    def __init__(
        self, settings: Settings, count_waiting: Callable[[], Awaitable[int]], outage: OutageLog
    ) -> None:
        self.must_look = asyncio.Event()
        self._settings = settings
        self._count_waiting = count_waiting
        self._outage = outage
        self._reminder = Reminder()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Starts processes until cancelled; then ends them."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.must_look.wait(), LOOK_S)
                self.must_look.clear()
                try:
                    await self._look()
                except AWAY as error:
                    self._outage.note("control jobs", error)
        finally:
            await end_tasks(self._running)

    async def _look(self) -> None:
        while await self._count_waiting() and len(self._running) < MOST_PROCESSES:
            if self._running:
                await asyncio.sleep(PATIENCE_S)
                if not await self._count_waiting():
                    break
            task = asyncio.create_task(self._run_one(), name="control jobs")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            await asyncio.sleep(PATIENCE_S)
        self._outage.over("control jobs")

    async def _run_one(self) -> None:
        environment = {**os.environ, **self._settings.to_environment()}
        try:
            process = spawn([sys.executable, "-P", "-m", MODULE], environment)
        except OSError as error:
            # No process, descriptor or memory is left for now; the models are served all the same.
            if self._reminder.is_due(str(error)):
                log.error("cannot run %s: %s", MODULE, error.strerror)
            return
        try:
            await exited(process)
        finally:
            try:
                if not has_exited(process):
                    process.send_signal(signal.SIGTERM)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(exited(process), STOP_S)
            finally:
                kill_group(process)
        if process.returncode:
            log.warning("%s ended, exit=%s", MODULE, process.returncode)
