"""Children are watched and started where the system offers less, or refuses."""

import asyncio
import errno
import os
import subprocess

import pytest

from batching.process.child_process import exited, kill_group, spawn


def test_end_of_a_child_is_seen_where_the_kernel_has_no_descriptors_of_processes(monkeypatch):
    # Given a kernel of before 2019, or a container's filter of system calls
    def pidfd_open(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", pidfd_open, raising=False)
    child = spawn(["/bin/sh", "-c", "exit 7"], {})
    # When
    asyncio.run(asyncio.wait_for(exited(child), 10))
    # Then
    kill_group(child)
    assert child.returncode == 7


def test_system_that_starts_no_process_is_told_of_by_what_to_raise(monkeypatch):
    # Given what subprocess raises where a limit of processes is reached
    def refuse(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    # When / Then
    with pytest.raises(OSError, match="no process can be started: raise this server's") as caught:
        spawn(["true"], {})
    assert caught.value.errno == errno.EAGAIN
