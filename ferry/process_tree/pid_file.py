"""TorchServe's pid file: which server `--stop` means.

Source: TorchServe 0.12 ts/model_server.py, its place and its checks.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import psutil

# What the command line of a server has in it: ours, or that of TorchServe itself.
_MARKS = ("torchserve", "org.pytorch.serve.ModelServer")


def pid_file() -> Path:
    """Returns where it is; one per temporary folder."""
    return Path(tempfile.gettempdir()) / ".model_server.pid"


def running_server() -> psutil.Process | None:
    """Returns the server that the pid file names, if it still runs; a stale file is gone."""
    try:
        process = psutil.Process(int(pid_file().read_text(encoding="ascii")))
        # The number may belong to something else by now, or somebody else wrote it there.
        if process.pid != os.getpid() and any(mark in process.cmdline() for mark in _MARKS):
            return process
    except FileNotFoundError:
        return None
    except (OSError, ValueError, psutil.Error):
        pass
    with contextlib.suppress(OSError):
        pid_file().unlink()
    return None


def write_pid() -> None:
    """Writes this process's id into the file.

    Raises:
        OSError: it cannot be written, or is a link that somebody has laid there.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(pid_file(), flags, 0o644), "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


def remove_pid(pid: int) -> None:
    """Removes the file, unless it names a server that was started since."""
    with contextlib.suppress(OSError, ValueError):
        if int(pid_file().read_text(encoding="ascii")) == pid:
            pid_file().unlink()
