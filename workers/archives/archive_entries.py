"""Walks archives from any source: every entry is checked before a byte of it is used.

.mar → zip · anything else → tar, gzipped or not
"""

import gzip
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from batching.errors import InternalError, InvalidModel

MAX_ENTRIES = 10_000
MAX_UNPACKED_BYTES = 64 * 1024**3  # language models fill tens of them
CHUNK_BYTES = 1024**2
# What zip tools and torch-model-archiver write. zipfile inflates only these piece by piece: of
# bzip2 and LZMA one read may come to gigabytes.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    gzip.BadGzipFile,
    EOFError,
    NotImplementedError,  # zipfile: a compression method that this Python does not know
    RuntimeError,  # zipfile: an encrypted entry
    ValueError,  # tarfile: a length of 5000 digits; UnicodeError, too
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or folder; `path` is relative and stays inside. `open` may be called once."""

    path: PurePosixPath
    is_folder: bool
    size_bytes: int
    open: Callable[[], IO[bytes]]

    def chunks(self) -> Iterator[bytes]:
        """Yields the content, whose length must be the one in the archive's header."""
        left_bytes = self.size_bytes
        with self.open() as stream:
            while chunk := stream.read(CHUNK_BYTES):
                left_bytes -= len(chunk)
                if left_bytes < 0:
                    raise InvalidModel(f"Archive entry {self.path} is larger than it claims to be.")
                yield chunk
        if left_bytes:
            raise InvalidModel(f"Archive entry {self.path} is cut short.")


# An entry as the archive states it, and whether it is a plain file or folder.
_Stated = tuple[str, Entry, bool]


@contextmanager
def read_entries(
    path: Path, *, max_unpacked_bytes: int = MAX_UNPACKED_BYTES
) -> Iterator[Iterator[Entry]]:
    """Yields the entries of an archive in their order.

    Each must be read before the next is asked for.

    Raises (here or while the entries are walked or read):
        InvalidModel: not an archive, damaged, or over a limit.
        InternalError: an entry would land outside of the model's folder.
    """
    is_mar = path.suffix == ".mar"
    try:
        if is_mar:
            with zipfile.ZipFile(path) as bundle:
                yield _checked(_zip_entries(bundle), path.name, max_unpacked_bytes)
        else:
            with path.open("rb") as stream:
                is_gzip = stream.read(2) == b"\x1f\x8b"
            with tarfile.open(path, "r:gz" if is_gzip else "r:") as tar:
                yield _checked(_tar_entries(tar), path.name, max_unpacked_bytes)
    except _BROKEN as error:
        kind = "a zip (.mar)" if is_mar else "a tar or tar.gz (a zip has to be named .mar)"
        why = str(error).partition("\n")[0]
        raise InvalidModel(
            f"{path.name} is not {kind} archive, or it is damaged or encrypted: {why}."
        ) from error


def _checked(
    stated_entries: Iterator[_Stated], archive_name: str, max_unpacked_bytes: int
) -> Iterator[Entry]:
    seen: dict[PurePosixPath, bool] = {}
    total_bytes = 0
    for count, (name, entry, is_plain) in enumerate(stated_entries, start=1):
        if count > MAX_ENTRIES:
            raise InvalidModel(f"{archive_name} has more than {MAX_ENTRIES} entries.")
        # A tool of Windows may have written backslashes, where they lead out.
        if entry.path.is_absolute() or ".." in re.split(r"[/\\]", name) or "\0" in name:
            raise InternalError(f"Failed to save model: {archive_name}")
        if not is_plain:
            raise InvalidModel(
                f"{archive_name} holds a link, device or other special file: {name!r}."
            )
        if not entry.path.parts:  # "./", the root itself
            continue
        _refuse_clash(entry, seen)
        if entry.size_bytes < 0:  # it would make room for others in the total
            raise InvalidModel(f"Archive entry {entry.path} claims a negative size.")
        total_bytes += entry.size_bytes
        if total_bytes > max_unpacked_bytes:
            limit = f"{max_unpacked_bytes // 1024**3} GiB"
            raise InvalidModel(f"{archive_name} unpacks to more than {limit}.")
        yield entry


def _refuse_clash(entry: Entry, seen: dict[PurePosixPath, bool]) -> None:
    """Refuses a path that is there twice, or is a file and a folder.

    Adds the path and the folders around it to `seen`. Whether names that differ in case are one is
    seen when they are unpacked.
    """
    if not entry.is_folder and seen.get(entry.path) is False:
        raise InvalidModel(f"Archive entry {entry.path} is there twice.")
    parents = ((parent, True) for parent in entry.path.parents)
    for path, is_folder in ((entry.path, entry.is_folder), *parents):
        if seen.setdefault(path, is_folder) != is_folder:
            raise InvalidModel(f"Archive entry {path} clashes with another entry's name.")


def _zip_entries(bundle: zipfile.ZipFile) -> Iterator[_Stated]:
    for info in bundle.infolist():
        name = info.filename
        if info.compress_type not in _ZIP_METHODS:
            raise InvalidModel(f"Archive entry {name!r} is packed by another method than deflate.")
        # The upper half holds the Unix mode where a Unix tool wrote the zip, else zero.
        file_type = stat.S_IFMT(info.external_attr >> 16)
        is_plain = file_type in (0, stat.S_IFREG, stat.S_IFDIR)
        opening = partial(bundle.open, info)
        yield name, Entry(PurePosixPath(name), info.is_dir(), info.file_size, opening), is_plain


def _tar_entries(tar: tarfile.TarFile) -> Iterator[_Stated]:
    for member in tar:
        # A sparse file is regular to tarfile, yet unpacks to any size that it likes.
        is_plain = (member.isreg() and not member.issparse()) or member.isdir()
        path, opening = PurePosixPath(member.name), partial(_open_member, tar, member)
        yield member.name, Entry(path, member.isdir(), member.size, opening), is_plain


def _open_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(member)
    assert stream is not None  # only of what is neither file nor link, which _checked refuses
    return stream
