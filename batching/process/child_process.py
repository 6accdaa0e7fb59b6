"""Starts child processes that cannot outlive this one.

A parent that dies, by SIGKILL too, must not leave a worker holding a GPU, so on Linux each child
asks the kernel to be killed with its parent. Each child leads a session of its own: Ctrl-C reaches
only the parent, which then stops its children in the right order.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
# A remedy where the system starts no more processes or threads.
PROCESS_LIMIT_ADVICE = (
    "raise this server's limit of processes (pids limit, TasksMax, ulimit -u), or of memory"
)
_POLL_S = 0.05  # where the system has no pidfd
# Loaded here and not in the child: between fork and exec nothing may import or allocate much.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    *,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a child that dies with this process and leads its own session.

    The kernel sends the signal when the *thread* that forked ends, not the process, so only the
    main thread may call this. `env` is the child's whole environment.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("spawn() belongs to the main thread: a child dies with its thread")
    parent_pid = os.getpid()

    def die_with_parent() -> None:
        assert _LIBC is not None
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # If the parent died before the prctl, the signal never comes.
        if os.getppid() != parent_pid:
            os._exit(1)

    try:
        return subprocess.Popen(  # noqa: S603 - the callers' own programs, never a shell
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            cwd=cwd,
            start_new_session=True,
            # Safe although other threads may exist: one prctl, two getppid, no lock, no import.
            preexec_fn=die_with_parent if _LIBC is not None else None,  # noqa: PLW1509
        )
    except BlockingIOError as error:
        message = f"no process can be started: {PROCESS_LIMIT_ADVICE}"
        raise BlockingIOError(error.errno, message) from error


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kills the child and its session's group, and reaps the child.

    It does nothing once `poll` or `wait` has seen the exit: the group's number may be another's.
    """
    if child.returncode is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # the latter: only a zombie is left (macOS)
            child.kill()
        child.wait()


def has_exited(child: subprocess.Popen[bytes]) -> bool:
    """Returns whether the child has ended, without reaping it, so that `kill_group` may follow."""
    if child.returncode is not None:
        return True
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, flags) is not None


async def exited(child: "subprocess.Popen[bytes]") -> None:
    """Waits until `has_exited`: by a pidfd, which needs no signal handler and no thread."""
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):
        # Another system, Linux before 5.3, or a container that is not allowed to.
        while not has_exited(child):
            await asyncio.sleep(_POLL_S)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
