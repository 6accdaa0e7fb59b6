"""Keeps staging folders, in which archives are downloaded, unpacked and removed.

A process removes its own, unless it is killed or told to stop meanwhile. Removal goes through a
staging folder, too, because a folder that is half removed must not be taken for a complete one.

    work_dir/<name>.<number>/model   an archive's files, or a link to a folder of the model store
    work_dir/<name>.<number>/stamp   each file's inode, size and time; workers hold a lock on it
"""

import contextlib
import fcntl
import itertools
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from batching.settings.settings import Settings, SettingsError

log = logging.getLogger(__name__)

DOWNLOAD_PREFIX = ".download-"
UNPACK_PREFIX = ".unpack-"
# Longer than any download or unpacking takes: other nodes may be at work in the same folder.
ABANDONED_AFTER_S = 6 * 3600.0

MODEL, _STAMP = "model", "stamp"
# Unpacked archives and environments are named after the hash of their content.
_CONTENT_HASH = re.compile(r"[0-9a-f]{64}(\.\w+\.\d+)?")
# Python writes there what it compiles.
_BYTECODE = "__pycache__"


def work_dir_of(settings: Settings) -> Path:
    """Returns the folder in which a node unpacks archives: set, or else the first writable one."""
    named = settings.work_dir
    folders = [*_default_work_dirs()] if named is None else [named]
    if (folder := next(filter(is_writable, folders), None)) is not None:
        return folder
    tried = " or ".join(map(str, folders)) or tempfile.gettempdir()
    raise SettingsError(f"archives cannot be unpacked in {tried}: set work_dir to another folder")


def home_cache() -> Path | None:
    """Returns the user's folder of caches; None where the system does not know the user."""
    with contextlib.suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return None


def _default_work_dirs() -> Iterator[Path]:
    if (home := home_cache()) is not None:
        yield home / "torchferry" / "models"
    # A container may run as a user that its system does not know, whose home is / then. A folder
    # that others can write to may hold other models.
    with contextlib.suppress(OSError):
        own = Path(tempfile.gettempdir(), f"torchferry-{os.getuid()}")
        own.mkdir(mode=0o700, exist_ok=True)
        if (status := own.lstat()).st_uid == os.getuid() and status.st_mode == stat.S_IFDIR | 0o700:
            yield own / "models"


def is_writable(folder: Path) -> bool:
    parent = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    return parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


@contextlib.contextmanager
def folder_to_unpack_in(work_dir: Path) -> Iterator[Path]:
    """Yields a new staging folder and removes it afterwards.

    Not a `TemporaryDirectory`: the interpreter removes those at exit, and a thread that still
    unpacks would take the rest for a complete model. This one stays until `remove_abandoned`.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=UNPACK_PREFIX, dir=work_dir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def mark_used(path: Path) -> bool:
    """Marks the folder as used just now; returns false if it is gone."""
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        log.debug("cannot be marked folder=%s", path)  # read-only: it cannot be removed either
    return True


def unmarked_s(path: Path) -> float:
    # Wall clock, because that is what file systems keep.
    return time.time() - path.lstat().st_mtime  # noqa: TID251


def write_stamp(copy: Path) -> None:
    """Notes the state of the files below `model`, for `is_as_made`; not of files behind a link."""
    model = copy / MODEL
    paths = [] if model.is_symlink() else model.rglob("*")
    states = {str(path.relative_to(model)): _state(path) for path in paths}
    (copy / _STAMP).write_text(json.dumps(states), encoding="utf-8")


def is_as_made(copy: Path, *, is_exact: bool = False) -> bool:
    """Returns whether all files are there and unchanged since they were unpacked.

    With `is_exact`, further files, such as a handler's cache, count as a change.
    """
    model = copy / MODEL
    try:
        states = json.loads((copy / _STAMP).read_bytes())
        if is_exact and not model.is_symlink():
            paths = (path.relative_to(model) for path in model.rglob("*"))
            if {str(path) for path in paths if _BYTECODE not in path.parts} - states.keys():
                return False
        is_same = all(_state(model / name) == state for name, state in states.items())
        return is_same and model.is_dir()
    except (OSError, ValueError):
        return False


def _state(path: Path) -> list[int]:
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode):
        return [status.st_ino]
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def free_place(name: str, work_dir: Path, *, is_exact: bool = False) -> Path:
    """Returns the first unchanged folder of that name, or the path to make one at.

    Deletes changed ones on its way, unless a worker holds them. A held folder that has only got
    further files is shared with its workers.
    """
    for number in itertools.count():
        copy = work_dir / f"{name}.{number}"
        is_good = partial(is_as_made, copy, is_exact=is_exact)
        if is_good() or _remove_unheld(copy, work_dir, is_good) or is_as_made(copy):
            break
    return copy


def hold(model_dir: Path) -> None:
    """Keeps an unpacked archive from being deleted while this process or a fork of it lives."""
    with contextlib.suppress(OSError):  # a folder of the model store has no stamp
        fcntl.flock(os.open(model_dir.parent / _STAMP, os.O_RDONLY), fcntl.LOCK_SH)


def remove_unused(folder: Path, work_dir: Path, *, older_than_s: float) -> None:
    """Deletes the hash-named entries of `folder` that were not marked as used for this time.

    A worker that needs one at this very moment fails to start; its next try makes it again.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # another node was faster
            is_young = partial(lambda path: unmarked_s(path) <= older_than_s, path)
            if not _CONTENT_HASH.fullmatch(path.name) or is_young():
                continue
            if _remove_unheld(path, work_dir, is_young):
                log.info("removed unused folder=%s", path)


def _remove_unheld(path: Path, work_dir: Path, is_needed: Callable[[], bool]) -> bool:
    """Deletes the entry, by way of a staging folder; returns whether it is gone.

    It stays if a worker holds it, or if it is needed after all.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as cleanup:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            stamp = cleanup.enter_context((path / _STAMP).open("r+b"))
            fcntl.flock(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(path) and not is_needed():
            # Of a link, only the link goes.
            path.rename(cleanup.enter_context(folder_to_unpack_in(work_dir)) / path.name)
    return not os.path.lexists(path)


def remove_abandoned(folder: Path) -> None:
    for path in (*folder.glob(f"{DOWNLOAD_PREFIX}*"), *folder.glob(f"{UNPACK_PREFIX}*")):
        with contextlib.suppress(OSError):  # its owner tidies up, or has closed it
            if not path.is_dir() or path.is_symlink():
                continue
            if min(map(unmarked_s, (path, *path.iterdir()))) > ABANDONED_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
                log.info("removed abandoned folder=%s", path)
