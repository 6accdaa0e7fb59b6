"""How many cores there are for workers: by affinity and by the quota of the control groups."""

import os

import pytest

from batching.process.cores import usable_cores

MANY = 64


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with these files of control groups, for a process in the groups of `membership`."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(MANY)), raising=False)

    def make(membership, files):
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (tmp_path / "membership").write_text(membership)
        return tmp_path / "cgroup", tmp_path / "membership"

    return make


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("400000 100000", 4),
        ("250000 100000", 3),
        ("50000 100000", 1),
        ("9900000 100000", MANY),
        ("max 100000", MANY),
    ],
    ids=["whole", "rounded up", "half a core", "more than there are", "no limit"],
)
def test_quota_of_the_container_limits_the_cores(limit, expected, host):
    assert usable_cores(*host("0::/\n", {"cpu.max": limit})) == expected


def test_narrowest_of_the_groups_above_counts(host):
    # Given: as systemd and Kubernetes nest them
    files = {
        "cpu.max": "1600000 100000",
        "pods/cpu.max": "300000 100000",
        "pods/one/cpu.max": "max 100000",
        "elsewhere/cpu.max": "100000 100000",
    }

    # When / Then
    assert usable_cores(*host("0::/pods/one\n", files)) == 3


@pytest.mark.parametrize(
    ("quota", "expected"), [("150000", 2), ("-1", MANY)], ids=["limited", "no limit"]
)
@pytest.mark.parametrize("folder", ["cpu", "cpu/docker/abc"], ids=["container", "host"])
def test_quota_of_older_kernels_limits_the_cores(folder, quota, expected, host):
    # Given: a container sees the host's path of its group, and its own files at the root
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}
    membership = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n"

    # When / Then
    assert usable_cores(*host(membership, files)) == expected


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("", {}),
        ("0::/\n", {}),
        ("0::/\n", {"cpu.max": "nonsense"}),
        ("0::/\n", {"cpu.max": "100000 0"}),
        ("0::/../outside\n", {"cpu.max": "max 100000"}),
    ],
    ids=["no groups", "no file", "unknown words", "no period", "group out of sight"],
)
def test_what_the_groups_do_not_tell_limits_nothing(membership, files, host):
    assert usable_cores(*host(membership, files)) == MANY


def test_cores_are_those_that_this_process_may_run_on(host, tmp_path, monkeypatch):
    # Given
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 7}, raising=False)

    # When / Then: with no control groups either
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 3
