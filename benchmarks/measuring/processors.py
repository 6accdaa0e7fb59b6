"""What the processes of a server use: processor time, wake-ups, memory."""

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROLES = {
    "workers": "node",
    "ingress": "ingress",
    "workers.control_jobs": "control jobs",
    "workers.handling.worker": "workers",
}

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the processes of one role, over some time."""

    percent: float  # of a core
    wakes_per_s: float
    own_s: float
    kernel_s: float


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
    pattern = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
    texts = (status.read_text() for status in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(number) for text in texts for number in pattern.findall(text))


def descendants(*pids: int) -> list[psutil.Process]:
    """Returns these processes and all that they have started."""
    roots = [psutil.Process(pid) for pid in pids]
    return [member for root in roots for member in (root, *root.children(recursive=True))]


def role_of(process: psutil.Process) -> str:
    """Returns what a process is for in torchferry."""
    if process.name() in ("redis-server", "valkey-server"):
        return "Redis"
    words = process.cmdline()
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    own = next((role for role in ("node", "ingress") if role in words), "supervisor")
    return ROLES.get(module, own)


class Meter:
    """Processor time and wake-ups of processes from its making on, but of those that end."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids, self._started_s = pids, time.monotonic()
        self._before = self._read()

    def read(self) -> dict[str, Usage]:
        """Returns the use of each role, all its processes together."""
        seconds, now = time.monotonic() - self._started_s, self._read()
        usage = {}
        for role, pids in self._pids.items():
            lasting = {*pids} & now.keys() & self._before.keys()
            clock_s, woken, own_s, kernel_s = (
                sum(now[pid][i] - self._before[pid][i] for pid in lasting) for i in range(4)
            )
            usage[role] = Usage(100 * clock_s / seconds, woken / seconds, own_s, kernel_s)
        return usage

    def _read(self) -> dict[int, tuple[float, ...]]:
        spent = {}
        for pid in (pid for pids in self._pids.values() for pid in pids):
            with contextlib.suppress(OSError, psutil.NoSuchProcess):  # control jobs end when idle
                times = psutil.Process(pid).cpu_times()
                spent[pid] = (processor_s(pid), wakes(pid), times.user, times.system)
        return spent
