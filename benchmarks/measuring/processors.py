"""What the processes of a server use: processor time, wake-ups, memory."""

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
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
SUPERVISOR, REDIS = "supervisor", "Redis"

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


def resident_bytes(pid: int) -> int:
    """Returns the memory that the process holds, shared pages included."""
    return int(psutil.Process(pid).memory_info().rss)


def by_role(*pids: int) -> dict[str, list[int]]:
    """Returns these processes of torchferry and their descendants, by their roles."""
    return _grouped(pids, _role)


def by_name(*pids: int) -> dict[str, list[int]]:
    """Returns these processes and their descendants, by the names of their programs."""
    return _grouped(pids, psutil.Process.name)


def times_s(pids: Mapping[str, Sequence[int]]) -> dict[str, tuple[float, float]]:
    """Returns the processor time of each kind of process so far: own code, kernel."""
    found = {}
    for kind, members in pids.items():
        times = [psutil.Process(pid).cpu_times() for pid in members]
        found[kind] = (sum(one.user for one in times), sum(one.system for one in times))
    return found


def _grouped(pids: Sequence[int], kind: Callable[[psutil.Process], str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for pid in pids:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            found.setdefault(kind(member), []).append(member.pid)
    return found


def _role(process: psutil.Process) -> str:
    if process.name() in REDIS_PROGRAMS:
        return REDIS
    words = process.cmdline()
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    own = next((role for role in ("node", "ingress") if role in words), SUPERVISOR)
    return ROLES.get(module, own)


class Meter:
    """Processor time and wake-ups of processes from its making on."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = pids
        self._started_s = time.monotonic()
        self._before = self._read()

    def read(self) -> dict[str, Usage]:
        """Returns the use of each role, all its processes together, in percent of one core."""
        seconds = time.monotonic() - self._started_s
        return {
            role: Usage(
                percent=100 * (now_s - self._before[role][0]) / seconds,
                wakes_per_s=(now_wakes - self._before[role][1]) / seconds,
            )
            for role, (now_s, now_wakes) in self._read().items()
        }

    def _read(self) -> dict[str, tuple[float, int]]:
        return {
            role: (sum(map(processor_s, pids)), sum(map(wakes, pids)))
            for role, pids in self._pids.items()
        }


def total_percent(usage: Mapping[str, Usage]) -> float:
    """Returns the use of all roles together, in percent of one core."""
    return sum(one.percent for one in usage.values())
