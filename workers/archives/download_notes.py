"""Knows which archives of the model store were downloaded, by a note beside each with its URL.

No other file is ever replaced or removed.
"""

import contextlib
import logging
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from batching.errors import DownloadFailed
from workers.archives.staging import mark_used, unmarked_s

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")

log = logging.getLogger(__name__)


def was_downloaded(url: str, model_store: Path | None) -> bool:
    """Returns whether the store's archive with this URL's file name was downloaded from it."""
    name = _file_name(url)
    if model_store is None or not name:
        return False
    note = note_of(model_store / name)
    return note.is_file() and note.read_text(encoding="utf-8") == url


def may_share_a_file(url: str, other: str) -> bool:
    """Returns whether two `url` parameters may mean one file of the model store, by its name.

    A download can be registered by its name in the store, too.
    """
    return bool(_file_name(url)) and _file_name(url) == _file_name(other)


def remove_download(url: str, model_store: Path) -> bool:
    """Removes the archive that was downloaded from this URL; returns whether there was one."""
    if not was_downloaded(url, model_store):
        return False
    target = model_store / _file_name(url)
    target.unlink(missing_ok=True)
    note_of(target).unlink(missing_ok=True)
    return True


def remove_unused_downloads(
    model_store: Path, is_needed: Callable[[str], bool], *, older_than_s: float
) -> None:
    """Marks the downloads that are needed and removes those that were not marked for so long.

    A registration that fails after its download leaves one behind.
    """
    for note in model_store.glob(".*.url"):
        with contextlib.suppress(OSError, ValueError):  # another node was faster, or it is no note
            url = note.read_text(encoding="utf-8")
            if is_needed(url):
                mark_used(note)
            elif unmarked_s(note) > older_than_s and remove_download(url, model_store):
                log.info("removed unused download url=%s", url)


def store_path(url: str, model_store: Path) -> Path:
    """Returns where the archive at `url` belongs in the model store.

    Raises:
        DownloadFailed: the URL does not end in a file name.
    """
    if not (name := _file_name(url)):
        raise DownloadFailed(
            f"Failed to download archive from: {url}. Its path has to end in a file name of "
            "letters, digits, '.', '_' and '-'"
        )
    return model_store / name


def note_of(target: Path) -> Path:
    """Returns the file that has the URL from which this archive was downloaded."""
    return target.with_name(f".{target.name}.url")


def _file_name(url: str) -> str:
    """Returns the last segment of the URL's path; empty unless a file here may have that name."""
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return name if _FILE_NAME.fullmatch(name) else ""
