"""The child processes of a node that run control jobs."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from batching.process.child_process import exited, has_exited, kill_group, spawn
from batching.process.reminder import Reminder
from batching.settings.settings import Settings

log = logging.getLogger(__name__)

RESTART_S = 1.0
STOP_S = 2.0
SECOND_AFTER_S = 5.0
_MODULE = "workers.control_jobs"


async def keep_control_workers(
    settings: Settings, *, second_after_s: float = SECOND_AFTER_S
) -> None:
    """Keeps two child processes running until cancelled.

    One may be at a download for many minutes; the other one takes the jobs that come meanwhile. It
    begins later, to leave the processor to a node that starts.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(keep_control_worker(settings), name="control worker")
        await asyncio.sleep(second_after_s)
        group.create_task(keep_control_worker(settings), name="second control worker")


async def keep_control_worker(settings: Settings, *, restart_s: float = RESTART_S) -> None:
    """Keeps a child process running until cancelled; starts another one when it dies."""
    reminder = Reminder()
    while True:
        try:
            await _run_once({**os.environ, **settings.to_environment()})
        except OSError as error:
            # No process, descriptor or memory is left for now; the models are served all the same.
            if reminder.is_due(str(error)):
                log.error("cannot run %s: %s", _MODULE, error.strerror)
        await asyncio.sleep(restart_s)


async def _run_once(environment: Mapping[str, str]) -> None:
    process = spawn([sys.executable, "-P", "-m", _MODULE], environment)
    try:
        await exited(process)
    finally:
        await _stop(process)
    log.warning("%s ended, exit=%s", _MODULE, process.returncode)


async def _stop(process: "subprocess.Popen[bytes]") -> None:
    try:
        if not has_exited(process):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(exited(process), STOP_S)
    finally:
        kill_group(process)
