"""Counts the cores that this process may use: in a container, mostly fewer than the host has."""

import contextlib
import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Returns how many cores affinity and control groups allow; part of a core counts as one."""
    is_known = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if is_known else os.cpu_count() or 1
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 1 has a hierarchy for each controller, and a file for each number.
        mount = cgroups / "cpu" if controllers else cgroups
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        group = mount / path.lstrip("/")
        # The lowest may be an outer group's, such as a pod's or a systemd slice's. A container may
        # see the host's path; then only its own group is there, at the top.
        for folder in (it for it in (group, *group.parents) if it.is_relative_to(mount)):
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                numbers = " ".join((folder / name).read_text() for name in names)
                quota_us, period_us = map(int, numbers.split())  # "max" is no number
                if quota_us > 0:
                    cores = min(cores, math.ceil(quota_us / period_us))
    return max(1, cores)
