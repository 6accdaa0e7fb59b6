"""Folders in which archives are downloaded and unpacked before they count, and their clearing.

Whoever makes one also removes it, except a process that was killed.
"""

import logging
import shutil
import time
from pathlib import Path

log = logging.getLogger(__name__)

DOWNLOAD_PREFIX = ".download-"
UNPACK_PREFIX = ".unpack-"

# Longer than any download or unpacking takes: other nodes may be at work in the same folder.
ABANDONED_AFTER_S = 6 * 3600.0


def sweep(folder: Path, *, older_than_s: float = ABANDONED_AFTER_S) -> list[Path]:
    """The quarantine folders that nobody has written to for so long; they are gone now."""
    swept = []
    for prefix in (DOWNLOAD_PREFIX, UNPACK_PREFIX):
        for place in folder.glob(f"{prefix}*"):
            if place.is_dir() and not place.is_symlink() and _age_s(place) > older_than_s:
                shutil.rmtree(place, ignore_errors=True)
                log.info("removed abandoned folder=%s", place)
                swept.append(place)
    return swept


def _age_s(place: Path) -> float:
    """Seconds since something in it was written."""
    latest_s = 0.0
    for path in (place, *place.iterdir()):
        try:
            latest_s = max(latest_s, path.stat().st_mtime)
        except OSError:  # its owner is tidying up
            return 0.0
    # Wall clock, because that is what file systems keep.
    return time.time() - latest_s  # noqa: TID251
