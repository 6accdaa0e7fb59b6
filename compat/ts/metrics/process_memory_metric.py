"""Resident memory of processes."""

from collections.abc import Iterable
from pathlib import Path

_KIB = 1024


def get_cpu_usage(pid: str) -> int:
    """Resident memory of a process in bytes (the name is TorchServe's); 0 when it is gone."""
    try:
        status = Path(f"/proc/{int(pid)}/status").read_text(encoding="ascii")
    except (OSError, ValueError):
        return 0
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * _KIB
    return 0


def check_process_mem_usage(stdin: Iterable[str]) -> list[str]:
    """One `pid:bytes` for each line that holds a process id."""
    pids = [line.strip() for line in stdin]
    return [f"{pid}:{get_cpu_usage(pid)}" for pid in pids if pid]
