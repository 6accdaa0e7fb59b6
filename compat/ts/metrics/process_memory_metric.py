"""Measures the resident memory of processes."""

from collections.abc import Iterable

import psutil


def get_cpu_usage(pid: str) -> int:
    """Returns the resident memory of a process in bytes (TorchServe's name); 0 when it is gone."""
    try:
        return int(psutil.Process(int(pid)).memory_info().rss)
    except (psutil.Error, ValueError):
        return 0


def check_process_mem_usage(stdin: Iterable[str]) -> list[str]:
    pids = [line.strip() for line in stdin]
    return [f"{pid}:{get_cpu_usage(pid)}" for pid in pids if pid]
