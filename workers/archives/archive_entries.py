"""Unpacks archives from any source: every entry is checked before a byte of it is used.

.mar → zip · anything else → tar, gzipped or not
"""

import errno
import gzip
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from batching.errors import InternalError, InvalidModel

MAX_ENTRIES = 10_000
MAX_UNPACKED_BYTES = 64 * 1024**3  # language models fill tens of them
_CHUNK_BYTES = 1024**2
# What zip tools and torch-model-archiver write. zipfile inflates only these piece by piece: one
# read of bzip2 or LZMA may come to gigabytes.
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
# How a file system refuses a name that it has already, or cannot hold.
_NO_NAME = (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)


class _Entry(NamedTuple):
    """Describes a file or folder as the archive states it; links and devices are not `is_plain`."""

    name: str
    is_folder: bool
    is_plain: bool
    size_bytes: int
    open: Callable[[], IO[bytes] | None]


def unpack_entries(
    path: Path, folder: Path, *, max_unpacked_bytes: int = MAX_UNPACKED_BYTES
) -> None:
    """Writes all entries of an archive below an empty folder.

    Raises:
        InvalidModel: not an archive, damaged, or over a limit.
        InternalError: an entry would land outside of the folder.
        OSError: the disk fails.
    """
    is_mar = path.suffix == ".mar"
    try:
        if is_mar:
            with zipfile.ZipFile(path) as bundle:
                _write_all(_zip_entries(bundle), path.name, folder, max_unpacked_bytes)
        else:
            with path.open("rb") as stream:
                is_gzip = stream.read(2) == b"\x1f\x8b"
                stream.seek(0)
                content: Any = _InPieces(gzip.GzipFile(fileobj=stream) if is_gzip else stream)
                with tarfile.open(fileobj=content, mode="r:") as tar:
                    _write_all(_tar_entries(tar), path.name, folder, max_unpacked_bytes)
    except _BROKEN as error:
        kind = "a zip (.mar)" if is_mar else "a tar or tar.gz (a zip has to be named .mar)"
        why = str(error).partition("\n")[0]
        raise InvalidModel(
            f"{path.name} is not {kind} archive, or it is damaged or encrypted: {why}."
        ) from error


class _InPieces:
    """Reads a file by pieces: tarfile reads a header at once, which may claim gigabytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size_bytes: int) -> bytes:
        if size_bytes > _CHUNK_BYTES:
            raise tarfile.ReadError(f"a header of {size_bytes} bytes")
        content: bytes = self._stream.read(size_bytes)
        return content


def _zip_entries(bundle: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in bundle.infolist():
        if info.compress_type not in _ZIP_METHODS:
            raise InvalidModel(
                f"Archive entry {info.filename!r} is packed by another method than deflate."
            )
        # The upper half holds the Unix mode where a Unix tool wrote the zip, else zero.
        is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
        opening = partial(bundle.open, info)
        yield _Entry(info.filename, info.is_dir(), is_plain, info.file_size, opening)


def _tar_entries(tar: tarfile.TarFile) -> Iterator[_Entry]:
    for member in tar:
        # To tarfile a sparse file is regular, yet it may unpack to any size.
        is_plain = (member.isreg() and not member.issparse()) or member.isdir()
        opening = partial(tar.extractfile, member)
        yield _Entry(member.name, member.isdir(), is_plain, member.size, opening)


def _write_all(
    entries: Iterable[_Entry], archive_name: str, folder: Path, max_unpacked_bytes: int
) -> None:
    left_bytes = max_unpacked_bytes
    for count, entry in enumerate(entries, start=1):
        if count > MAX_ENTRIES:
            raise InvalidModel(f"{archive_name} has more than {MAX_ENTRIES} entries.")
        path = PurePosixPath(entry.name)
        # Tools of Windows write backslashes.
        if path.is_absolute() or ".." in re.split(r"[/\\]", entry.name) or "\0" in entry.name:
            raise InternalError(f"Failed to save model: {archive_name}")
        if not entry.is_plain:
            raise InvalidModel(
                f"{archive_name} holds a link, device or other special file: {entry.name!r}."
            )
        if entry.size_bytes < 0:  # it would make room for others in the total
            raise InvalidModel(f"Archive entry {entry.name!r} claims a negative size.")
        left_bytes -= entry.size_bytes
        if left_bytes < 0:
            limit = f"{max_unpacked_bytes // 1024**3} GiB"
            raise InvalidModel(f"{archive_name} unpacks to more than {limit}.")
        _write(entry, folder / path)


def _write(entry: _Entry, target: Path) -> None:
    """Writes an entry, over no other; its length must be the one in the archive's header."""
    left_bytes = entry.size_bytes
    try:
        (target if entry.is_folder else target.parent).mkdir(parents=True, exist_ok=True)
        if entry.is_folder:
            return
        source = entry.open()
        assert source is not None  # tarfile returns None for devices, which are refused above
        with source, target.open("xb") as stream:
            while chunk := source.read(_CHUNK_BYTES):
                left_bytes -= len(chunk)
                if left_bytes < 0:
                    raise InvalidModel(f"Archive entry {entry.name!r} is larger than it claims.")
                stream.write(chunk)
    except OSError as error:
        if error.errno not in _NO_NAME:
            raise
        # This file system may not tell model.py from Model.py.
        raise InvalidModel(
            f"Archive entry {entry.name!r} clashes with another one, or cannot be a file here: "
            f"{error.strerror}."
        ) from error
    if left_bytes:
        raise InvalidModel(f"Archive entry {entry.name!r} is cut short.")
