"""Starts a worker's operating-system process, reads its reports, and ends it when it is late."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import site
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from batching.models.statuses import WorkerState
from batching.process.child_process import exited, has_exited, kill_group, spawn
from batching.process.outputs import outlet, read_lines
from batching.settings.settings import Settings
from workers.archives.model_files import allowed_environment
from workers.archives.staging import home_cache, is_writable
from workers.machine import ts_folder
from workers.slots.assignment import SIGNAL_OF_LATE, Assignment, Deadline, ExitStatus, shared_memory

log = logging.getLogger(__name__)

PIPE_PATIENCE_S = 0.2
LOOK_S = 1.0  # no longer than the shortest response_timeout: a batch may begin meanwhile
# When this process stood still for this time, as in a container that was paused, its worker may
# have done so, too, and gets time to come back from a wait for work.
STILL_S = 1.0
RECOVERY_S = 3.0
STACKS_S = 0.2
LATE = "response_timeout passed, or it would not end"
# A worker that was told to stop looks for work once more at most.
MOST_TURNS = 10
# Of one report, which may have a traceback.
MOST_REPORT_BYTES = 2**20

# A batch's intermediate tensors have tens of megabytes each. By default glibc fetches such memory
# from the kernel and gives it back for every batch, page by page: a tenth of a ResNet-152's time.
# With these, a worker keeps the memory that it has used, until `SpareMemory` gives some back.
# Other C libraries ignore these variables.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(8 * 1024 * 1024 * 1024),
}

# How many cores a worker computes on, as OpenMP and MKL are told.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerReport(msgspec.Struct, frozen=True):
    """Says how a worker does: FAILED when it could not load; READY with its interface."""

    state: WorkerState
    error: str = ""
    traceback: str = ""
    is_out_of_memory: bool = False
    interface: dict[str, Any] = {}


class WorkerProcess:
    """Watches one run of `python -m workers.handling.worker`."""

    def __init__(
        self, child: "subprocess.Popen[bytes]", reader_fd: int, deadline: Deadline
    ) -> None:
        self.started_at = time.monotonic()
        self._child = child
        self._reader_fd = reader_fd
        self._deadline = deadline
        self._last_turn = math.inf
        # Copied to this process's own outputs; whatever becomes of these, no print waits or fails.
        self._outputs = [
            read_lines(stream, outlet(fd).write_line)
            for fd, stream in ((1, child.stdout), (2, child.stderr))
            if stream is not None
        ]
        self._ended_for = ""

    @classmethod
    def start(
        cls,
        python: Path,
        environment: Callable[[int, int], Mapping[str, str]],
        *,
        has_one_output: bool = False,
    ) -> Self:
        reader_fd, *descriptors = os.pipe()
        try:
            descriptors.append(shared_memory())
            deadline = Deadline(descriptors[-1])
            # -P: a folder `workers` in the user's current directory must not be run instead.
            child = spawn(
                [str(python), "-P", "-m", "workers.handling.worker"],
                environment(*descriptors),
                pass_fds=descriptors,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if has_one_output else subprocess.PIPE,
            )
        except BaseException:
            os.close(reader_fd)
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return cls(child, reader_fd, deadline)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def resident_bytes(self) -> int:
        """Returns the process's memory; 0 if it is gone, or no descriptor is left to look."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except (psutil.Error, OSError):
            return 0

    def terminate(self) -> None:
        """Asks the process to finish its batch and end; it may look for work MOST_TURNS times."""
        self._last_turn = min(self._last_turn, self._deadline.turns + MOST_TURNS)
        self._send(signal.SIGTERM)

    def kill(self, why: str = "") -> None:
        """Kills the process; `why` becomes the cause of its exit status."""
        if not has_exited(self._child):
            self._ended_for = why
            self._send(signal.SIGKILL)

    async def watch(self, on_report: Callable[[WorkerReport], None]) -> ExitStatus:
        """Waits for the process to end, and returns how it ended; kills it on an error."""
        try:
            return await self._watch(on_report)
        except asyncio.CancelledError:
            # The node leaves, and does not wait for a device that takes long to give memory back.
            if self._child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            raise
        except Exception:
            kill_group(self._child)
            raise

    async def _watch(self, on_report: Callable[[WorkerReport], None]) -> ExitStatus:
        reader = asyncio.StreamReader(MOST_REPORT_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._reader_fd, "rb")
        )
        reports = asyncio.create_task(_read_reports(reader, on_report))
        ending = asyncio.create_task(self._end_when_late())
        outputs = [asyncio.wrap_future(output) for output in self._outputs]
        try:
            await exited(self._child)
            # The handler's own processes go, too; they may hold the device, and the pipe.
            kill_group(self._child)
            await asyncio.wait({reports, *outputs}, timeout=PIPE_PATIENCE_S)
        finally:
            for waiting in (reports, ending, *outputs):
                waiting.cancel()
            transport.close()
        return ExitStatus(self._child.returncode, self._ended_for)

    async def _end_when_late(self) -> None:
        """Ends a process that is late, whatever its handler has done to its threads and signals."""
        while self._deadline.turns <= self._last_turn:
            now_s = time.monotonic()
            if (left_s := self._deadline.ends_at - now_s) <= 0:
                break
            woken_at = now_s + min(left_s, LOOK_S)
            await asyncio.sleep(woken_at - now_s)
            if time.monotonic() - woken_at > STILL_S:
                await asyncio.sleep(RECOVERY_S)
        log.error("worker is late pid=%d", self.pid)
        self._ended_for = LATE
        self._send(SIGNAL_OF_LATE)
        self._send(signal.SIGCONT)  # in case that it was stopped
        await asyncio.sleep(STACKS_S)
        self.kill(LATE)

    def _send(self, number: int) -> None:
        # Popen would reap a process that has just ended, and the rest of its group would be lost.
        if not has_exited(self._child):
            os.kill(self.pid, number)


async def _read_reports(
    reader: asyncio.StreamReader, on_report: Callable[[WorkerReport], None]
) -> None:
    while True:
        try:
            if not (line := await reader.readline()):
                return
            on_report(msgspec.json.decode(line, type=WorkerReport))
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            # Model code has the descriptor, too, and may write anything. Reading goes on: a process
            # that cannot write does not end.
            log.warning("unreadable report: %s", error)


# --- its environment


def worker_environment(assignment: Assignment, settings: Settings, threads: int) -> dict[str, str]:
    """Returns a worker's variables: defaults, this process's but forbidden ones, and its own."""
    home = home_cache()
    caches = {}
    if settings.work_dir is not None and (home is None or not is_writable(home)):
        # Otherwise handlers download weights, by torch.hub for example, into an unwritable folder.
        caches["XDG_CACHE_HOME"] = str(settings.work_dir.absolute() / "caches")
    root = str(Path(__file__).resolve().parents[2])
    # Installed packages are found anyway, and must not come before a model's own. Their folder may
    # be a link: /opt/torchferry, to the release in use.
    own = "" if root in map(os.path.realpath, site.getsitepackages()) else root
    path = filter(None, (str(ts_folder()), own, os.environ.get("PYTHONPATH")))
    return {
        **ALLOCATOR,
        **dict.fromkeys(THREADS, str(threads)),
        # GPUs are numbered as by nvidia-smi, and with it /metrics, not with the fastest one first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **allowed_environment(os.environ, settings.blacklist_env_vars),
        **caches,
        # It works in the model's folder, where relative paths would lead elsewhere. A handler that
        # knew the secrets could sign messages.
        **replace(settings.absolute(), webhook_secrets="").to_environment(),
        **assignment.to_environment(),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
    }
