"""How many cores this process may use; in a container, mostly fewer than the host has."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Returns as many as affinity and control groups allow; part of a core counts as one."""
    is_known = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if is_known else os.cpu_count() or 1
    return max(1, min([cores, *_quotas(cgroups, membership)]))


def _quotas(cgroups: Path, membership: Path) -> Iterator[int]:
    """Yields the CPU quotas, in cores, of this process's cgroups and of all groups around them.

    The limit that counts may be that of an outer group: of a pod, or a slice of systemd.
    """
    for mount, group in _mounted_groups(cgroups, membership):
        # A container may be told the host's path; then only its own group is there, at the top.
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                    quota_us, period_us = _limit(folder)
                    if quota_us > 0:
                        yield math.ceil(quota_us / period_us)


def _mounted_groups(cgroups: Path, membership: Path) -> Iterator[tuple[Path, Path]]:
    """Yields each mounted hierarchy of cgroups that may limit CPU, with this process's group."""
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield cgroups, cgroups / path.lstrip("/")
            elif "cpu" in controllers.split(","):
                yield cgroups / "cpu", cgroups / "cpu" / path.lstrip("/")


def _limit(folder: Path) -> tuple[int, int]:
    """Returns a group's microseconds of CPU time per so many of wall-clock time, or raises."""
    if (both := folder / "cpu.max").exists():
        quota_us, period_us = both.read_text().split()  # "max" is no number
        return int(quota_us), int(period_us)
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    quota, period = ((folder / name).read_text() for name in names)
    return int(quota), int(period)
