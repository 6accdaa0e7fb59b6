"""Children, watched by whatever means the system has."""

import asyncio
import errno
import os

from batching.child_process import exited, kill_group, spawn


def test_end_of_a_child_is_seen_where_the_kernel_has_no_descriptors_of_processes(monkeypatch):
    # Given a kernel of before 2019, or a container's filter of system calls
    def pidfd_open(_pid):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", pidfd_open, raising=False)
    child = spawn(["/bin/sh", "-c", "exit 7"], {})
    # When
    asyncio.run(asyncio.wait_for(exited(child), 10))
    # Then
    kill_group(child)
    assert child.returncode == 7
