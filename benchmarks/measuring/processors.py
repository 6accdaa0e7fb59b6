"""What the processes of a server use: processor time, wake-ups, memory."""

import contextlib
import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

REDIS_PROGRAMS = ("redis-server", "valkey-server")
ROLES = {
    "workers": "node",
    "ingress": "ingress",
    "workers.control_jobs": "control jobs",
    "workers.handling.worker": "workers",
}

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the processes of one role, over some time: percent of a core, wake-ups per second."""

    percent: float
    wakes_per_s: float


def processor_s(pid: int) -> float:
    """Returns the processor time of all threads of the process so far.

    Of its clock, which counts nanoseconds; /proc tells hundredths of a second, most of what an idle
    process uses in ten.

    Raises:
        ProcessLookupError: there is no such process.
    """
    clock = ctypes.c_int()
    if number := _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(number, os.strerror(number))
    return time.clock_gettime(clock.value)


def wakes(pid: int) -> int:
    """Returns how often living threads of the process have waited for something so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, number = line.partition(":")
            total += int(number) if name == "voluntary_ctxt_switches" else 0
    return total


def descendants(*pids: int) -> list[psutil.Process]:
    """Returns these processes and all that they have started."""
    roots = [psutil.Process(pid) for pid in pids]
    return [member for root in roots for member in (root, *root.children(recursive=True))]


def role_of(process: psutil.Process) -> str:
    """Returns what a process is for in torchferry."""
    if process.name() in REDIS_PROGRAMS:
        return "Redis"
    words = process.cmdline()
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    own = next((role for role in ("node", "ingress") if role in words), "supervisor")
    return ROLES.get(module, own)


def times_s(pids: Mapping[str, Sequence[int]]) -> dict[int, tuple[float, float]]:
    """Returns the processor time so far of each process that lives: own code, kernel."""
    spent = {}
    for pid in (pid for members in pids.values() for pid in members):
        with contextlib.suppress(psutil.NoSuchProcess):  # that of control jobs ends when idle
            times = psutil.Process(pid).cpu_times()
            spent[pid] = times.user, times.system
    return spent


class Meter:
    """Processor time and wake-ups of processes from its making on, but of those that end."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = pids
        self._started_s = time.monotonic()
        self._before = self._read()

    def read(self) -> dict[str, Usage]:
        """Returns the use of each role, all its processes together, in percent of one core."""
        seconds, now = time.monotonic() - self._started_s, self._read()
        usage = {}
        for role, pids in self._pids.items():
            both = [
                (self._before[pid], now[pid]) for pid in pids if pid in now and pid in self._before
            ]
            spent_s, woken = (sum(end[i] - start[i] for start, end in both) for i in (0, 1))
            usage[role] = Usage(100 * spent_s / seconds, woken / seconds)
        return usage

    def _read(self) -> dict[int, tuple[float, int]]:
        spent = {}
        for pid in (pid for pids in self._pids.values() for pid in pids):
            with contextlib.suppress(OSError):
                spent[pid] = processor_s(pid), wakes(pid)
        return spent
