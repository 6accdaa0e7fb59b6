"""Folders in which archives are downloaded and unpacked before they count, and their clearing.

Whoever makes one also removes it, except a process that was killed, or told to stop meanwhile. What
is no longer needed goes through one, too: a folder that is half removed must not be taken for a
whole one.
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

# Unpacked archives and environments are named after what is in them.
_CONTENT_HASH = re.compile(r"[0-9a-f]{64}")


@contextlib.contextmanager
def folder_to_unpack_in(work_dir: Path) -> Iterator[Path]:
    """Yields a new staging folder, which is gone afterwards.

    Not a `TemporaryDirectory`: the interpreter removes those at exit, and a thread that the stop of
    its node has abandoned would take what is left of its folder for a whole model. So that folder
    stays, and some node's `remove_abandoned` removes it.
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
        log.debug("cannot be marked folder=%s", place)  # read-only: nobody removes it either
    return True


def unmarked_s(place: Path) -> float:
    """Returns seconds since it was marked.

    Raises:
        OSError: it is gone.
    """
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
    """Seconds since something in it was written; 0 if its owner tidies up, or has closed it."""
    try:
        return _now_s() - max(path.stat().st_mtime for path in (place, *place.iterdir()))
    except OSError:
        return 0.0


def _now_s() -> float:
    # Wall clock, because that is what file systems keep.
    return time.time()  # noqa: TID251
