"""How many cores there are for workers: by affinity and by the quota of the control groups."""

import os

import pytest

from batching.process.cores import usable_cores

MANY = 64
NESTED = {  # as systemd and Kubernetes nest them
    "cpu.max": "1600000 100000",
    "pods/cpu.max": "300000 100000",
    "pods/one/cpu.max": "max 100000",
    "elsewhere/cpu.max": "100000 100000",
}
# A container sees the host's path of its group, and its own files at the root.
OLDER_KERNEL = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n"


def older(folder, quota):
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}


CASES = {
    "whole": ("0::/", {"cpu.max": "400000 100000"}, 4),
    "rounded up": ("0::/", {"cpu.max": "250000 100000"}, 3),
    "half a core": ("0::/", {"cpu.max": "50000 100000"}, 1),
    "more than there are": ("0::/", {"cpu.max": "9900000 100000"}, MANY),
    "no limit": ("0::/", {"cpu.max": "max 100000"}, MANY),
    "narrowest of the groups above": ("0::/pods/one", NESTED, 3),
    "older kernel, container": (OLDER_KERNEL, older("cpu", "150000"), 2),
    "older kernel, host": (OLDER_KERNEL, older("cpu/docker/abc", "150000"), 2),
    "older kernel, no limit": (OLDER_KERNEL, older("cpu", "-1"), MANY),
    "no groups": ("", {}, MANY),
    "no file": ("0::/", {}, MANY),
    "unknown words": ("0::/", {"cpu.max": "nonsense"}, MANY),
    "no period": ("0::/", {"cpu.max": "100000 0"}, MANY),
    "group out of sight": ("0::/../outside", {"cpu.max": "max 100000"}, MANY),
}


@pytest.mark.parametrize(("membership", "files", "expected"), CASES.values(), ids=CASES)
def test_quotas_of_the_groups_limit_the_cores(membership, files, expected, tmp_path, monkeypatch):
    # Given
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(MANY)), raising=False)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    # When / Then
    assert usable_cores(tmp_path / "cgroup", tmp_path / "membership") == expected


def test_cores_are_those_that_this_process_may_run_on(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 7}, raising=False)
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 3
