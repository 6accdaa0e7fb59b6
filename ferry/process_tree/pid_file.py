"""TorchServe's pid file, which names the server that `--stop` stops.

Source: TorchServe 0.12 ts/model_server.py, its place and its checks.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import psutil

# Words in the command line of a server, be it ours or TorchServe itself.
_MARKS = ("torchserve", "org.pytorch.serve.ModelServer")


def pid_file() -> Path:
    """Returns the file's path; there is one per temporary folder."""
    return Path(tempfile.gettempdir()) / ".model_server.pid"


def running_server() -> psutil.Process | None:
    """Returns the server that the pid file names, if it still runs; else removes the file."""
    try:
        process = psutil.Process(int(pid_file().read_text(encoding="ascii")))
        # The number may belong to another program by now, or another user may have written it.
        if process.pid != os.getpid() and any(mark in process.cmdline() for mark in _MARKS):
            return process
    except FileNotFoundError:
        return None
    except (OSError, ValueError, psutil.Error):
        pass
    with contextlib.suppress(OSError):
        pid_file().unlink()
    return None


def has_ended(process: psutil.Process) -> bool:
    """Returns whether the process is gone, or a zombie, as it stays where no parent reaps it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def write_pid() -> None:
    """Writes this process's id into the file.

    Raises:
        OSError: the file cannot be written, or is a link that another user has laid there.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(pid_file(), flags, 0o644), "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


def remove_pid(pid: int) -> None:
    """Removes the file, unless it names a server that was started since."""
    with contextlib.suppress(OSError, ValueError):
        if int(pid_file().read_text(encoding="ascii")) == pid:
            pid_file().unlink()
