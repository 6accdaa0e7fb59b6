"""The folder of an embedded Redis that outlives it: an append-only file, and a lock."""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from batching.settings.settings import Settings

FSYNC_EVERY_SECOND, FSYNC_ALWAYS = "everysec", "always"
FSYNCS = (FSYNC_EVERY_SECOND, FSYNC_ALWAYS)
# The Redis of a server that was killed a moment ago may be writing its last bytes.
_LOCK_WAIT_S = 3.0
_LOCK_POLL_S = 0.05


class DataFolderError(RuntimeError):
    """Says why the folder cannot be used."""


@dataclass(frozen=True, slots=True)
class RedisData:
    """A folder that is locked for one server.

    `had_file`: whether an earlier server has left its data. `lock_fd` belongs to this process and
    to the Redis that it starts: as long as either lives, no other server opens the folder, and no
    two write one file.
    """

    folder: Path
    fsync: str
    lock_fd: int
    had_file: bool

    @classmethod
    def lock(cls, folder: Path, fsync: str, wait_s: float = _LOCK_WAIT_S) -> Self:
        """Makes the folder if need be, and locks it.

        Raises:
            DataFolderError: it cannot be written, or another server uses it.
        """
        try:
            # Inputs and results of jobs are in there, as they came.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderError(f"{folder} cannot be written: {error.strerror}") from error
        try:
            _take(lock_fd, folder, wait_s)
            # Who holds it, for people; and it shows a full disk here, in a sentence.
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
            os.fsync(lock_fd)
        except OSError as error:
            os.close(lock_fd)
            raise DataFolderError(f"{folder} cannot be written: {error.strerror}") from error
        except DataFolderError:
            os.close(lock_fd)
            raise
        return cls(folder, fsync, lock_fd, _has_file(folder))

    def release(self) -> None:
        """Gives the folder free, as soon as its Redis has ended, too."""
        with contextlib.suppress(OSError):
            os.close(self.lock_fd)

    def options(self) -> dict[str, str]:
        """Returns what the server is told about its file, which begins with the first job."""
        return {
            "dir": str(self.folder),
            # Without `yes` the server would not read a file that is there.
            "appendonly": "yes" if _has_file(self.folder) else "no",
            "appendfsync": self.fsync,
            # What a crash left half-written is cut off: it was not accepted for longer than a
            # second, or never.
            "aof-load-truncated": "yes",
        }


def default_data_dir(settings: Settings) -> Path | None:
    """Returns the folder beside the model store, one for each management port; None without one.

    As with snapshots, two servers of one model store must not take each other's models and jobs.
    Where the server runs in the store, it is a hidden one in there: what is above is not its own.
    """
    if settings.model_store is None:
        return None
    parts = urlsplit(settings.management_address)
    server = str(parts.port or re.sub(r"\W+", "-", settings.management_address).strip("-"))
    store = Path(os.path.abspath(settings.model_store))  # noqa: PTH100 - without `..`
    if Path.cwd().is_relative_to(store):
        return store / ".ferry-data" / server
    return store.with_name(f"{store.name}-data") / server


def lock_data(settings: Settings, fsync: str, warn: Callable[[str], None]) -> RedisData | None:
    """Locks the folder for the embedded Redis of these settings; None: it keeps nothing.

    Args:
        settings: `data_dir` is the operator's wish, and has to work; the default need not.
        fsync: when the server has the disk confirm what it wrote.
        warn: told why the default folder cannot be used.

    Raises:
        DataFolderError: `data_dir` cannot be used.
    """
    default = default_data_dir(settings)
    if settings.data_dir not in (None, default):
        return RedisData.lock(settings.data_dir / "redis", fsync)
    if default is None or not settings.config_snapshots:
        return None
    try:
        return RedisData.lock(default / "redis", fsync)
    except DataFolderError as error:
        warn(f"jobs end with this server (--data-dir chooses another folder): {error}")
        return None


def _has_file(folder: Path) -> bool:
    return any(folder.glob("appendonlydir/*.manifest"))


def _take(lock_fd: int, folder: Path, wait_s: float) -> None:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline_s:
                time.sleep(_LOCK_POLL_S)
                continue
            holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip()
            raise DataFolderError(
                f"{folder} is in use by another server (process {holder or 'unknown'})"
            ) from None
        return
