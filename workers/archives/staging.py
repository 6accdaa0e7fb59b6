"""Staging folders, in which archives are downloaded, unpacked and removed.

A process removes its own, unless it is killed or told to stop meanwhile. Removed files pass through
one, too: a folder that is half removed must not be taken for a whole one.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

DOWNLOAD_PREFIX = ".download-"
UNPACK_PREFIX = ".unpack-"

# Longer than any download or unpacking takes: other nodes may be at work in the same folder.
ABANDONED_AFTER_S = 6 * 3600.0

# Unpacked archives and environments are named after the hash of their content.
_CONTENT_HASH = re.compile(r"[0-9a-f]{64}")


@contextlib.contextmanager
def folder_to_unpack_in(work_dir: Path) -> Iterator[Path]:
    """Yields a new staging folder and removes it afterwards.

    Not a `TemporaryDirectory`: the interpreter removes those at exit, and a thread that is still at
    work then would take the rest of its folder for a whole model. That folder stays, until the
    `remove_abandoned` of some node.
    """
    folder = Path(tempfile.mkdtemp(prefix=UNPACK_PREFIX, dir=work_dir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def mark_used(place: Path) -> bool:
    """Marks the folder as used just now; returns false if it is gone."""
    try:
        os.utime(place, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        log.debug("cannot be marked folder=%s", place)  # read-only: it cannot be removed either
    return True


def unmarked_s(place: Path) -> float:
    """Returns the seconds since it was marked."""
    return _now_s() - place.lstat().st_mtime


def remove_unused(folder: Path, work_dir: Path, *, older_than_s: float) -> None:
    """Deletes the hash-named entries of `folder` that were not marked as used for so long.

    Each is moved into a staging folder of `work_dir` first. A worker that needs one at this very
    moment fails to start; its next try makes it anew.
    """
    for place in folder.iterdir() if folder.is_dir() else ():
        if not _CONTENT_HASH.fullmatch(place.name):
            continue
        with contextlib.suppress(OSError):  # another node was faster
            if unmarked_s(place) <= older_than_s:
                continue
            with tempfile.TemporaryDirectory(
                prefix=UNPACK_PREFIX, dir=work_dir, ignore_cleanup_errors=True
            ) as staging:
                # Where a folder was registered instead of a file, this removes only the link to it.
                place.rename(Path(staging) / place.name)
            log.info("removed unused folder=%s", place)


def remove_abandoned(folder: Path) -> None:
    """Deletes the staging folders that were not written to for ABANDONED_AFTER_S."""
    for prefix in (DOWNLOAD_PREFIX, UNPACK_PREFIX):
        for place in folder.glob(f"{prefix}*"):
            if place.is_dir() and not place.is_symlink() and _age_s(place) > ABANDONED_AFTER_S:
                shutil.rmtree(place, ignore_errors=True)
                log.info("removed abandoned folder=%s", place)


def _age_s(place: Path) -> float:
    """Returns the seconds since a write in it; 0 if its owner tidies up, or has closed it."""
    try:
        return _now_s() - max(path.stat().st_mtime for path in (place, *place.iterdir()))
    except OSError:
        return 0.0


def _now_s() -> float:
    # Wall clock, because that is what file systems keep.
    return time.time()  # noqa: TID251
