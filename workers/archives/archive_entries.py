"""Walks archives that nobody has vouched for: every entry is checked before a byte of it is used.

.mar → zip · anything else → tar, gzipped or not
"""

import gzip
import re
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from batching.errors import InternalError, InvalidModel
from workers.archives.zip_directory import zip_directory_bytes

MAX_ENTRIES = 10_000
MAX_UNPACKED_BYTES = 64 * 1024**3  # language models fill tens of them
MAX_RATIO = 100
MAX_NAME_CHARS = 1024
MAX_PARTS = 64
# All names together, and those of the folders around them, each once. They are kept in memory until
# the archive is read, and each folder is made on the disk.
MAX_NAMES_CHARS = MAX_ENTRIES * 256
# Of one entry in a tar, extended ones included: a long name, the attributes of the file.
MAX_HEADER_BYTES = 64 * 1024
# Below this size an entry may shrink as far as it likes: a file of zeros is not yet a bomb.
RATIO_FREE_BYTES = 1024**2
CHUNK_BYTES = 1024**2
# What a zip of MAX_ENTRIES needs at most for its directory, with generous names. `zipfile` reads
# the directory as a whole and makes an object per entry before anybody can count them.
MAX_ZIP_DIRECTORY_BYTES = MAX_ENTRIES * 1024
# What zip tools and torch-model-archiver write. zipfile inflates only these piece by piece; of
# bzip2 and LZMA one read may come to gigabytes, before anybody can count them.
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


@dataclass(slots=True)
class _Raw:
    """An entry as the archive states it, before any check."""

    name: str
    is_folder: bool
    is_plain: bool
    size_bytes: int
    packed_bytes: int
    open: Callable[[], IO[bytes]]


@contextmanager
def read_entries(path: Path) -> Iterator[Iterator[Entry]]:
    """Returns the entries of an archive in their order.

    Each must be read before the next is asked for.

    Raises (here or while the entries are walked or read):
        InvalidModel: not an archive, damaged, or over a limit.
        InternalError: an entry would land outside of the model's folder.
    """
    is_mar = path.suffix == ".mar"
    try:
        if is_mar:
            with open_zip(path) as bundle:
                yield _checked(_zip_entries(bundle), path.name)
        else:
            with _open_tar(path) as entries:
                yield _checked(entries, path.name)
    except _BROKEN as error:
        kind = "a zip (.mar)" if is_mar else "a tar or tar.gz (a zip has to be named .mar)"
        raise InvalidModel(
            f"{path.name} is not {kind} archive, or it is damaged or encrypted."
        ) from error


def open_zip(path: Path) -> zipfile.ZipFile:
    """Returns the zip, whose directory is in memory from then on.

    Raises:
        InvalidModel: that would take too much of it.
        BadZipFile: it is none.
    """
    if zip_directory_bytes(path) > MAX_ZIP_DIRECTORY_BYTES:
        raise InvalidModel(f"{path.name} has more than {MAX_ENTRIES} entries.")
    return zipfile.ZipFile(path)


def read_chunks(entry: Entry) -> Iterator[bytes]:
    """Yields the content of an entry, at most CHUNK_BYTES at a time.

    Raises:
        InvalidModel: there is more of it than the archive's own header says.
    """
    left_bytes = entry.size_bytes
    with entry.open() as stream:
        while chunk := stream.read(CHUNK_BYTES):
            left_bytes -= len(chunk)
            if left_bytes < 0:
                raise InvalidModel(f"Archive entry {entry.path} is larger than it claims to be.")
            yield chunk
    if left_bytes:
        raise InvalidModel(f"Archive entry {entry.path} is cut short.")


def _checked(raw_entries: Iterator[_Raw], archive_name: str) -> Iterator[Entry]:
    paths = _Paths(archive_name)
    total_bytes = 0
    for count, raw in enumerate(raw_entries, start=1):
        if count > MAX_ENTRIES:
            raise InvalidModel(f"{archive_name} has more than {MAX_ENTRIES} entries.")
        path = _inside(raw.name, archive_name)
        if not raw.is_plain:
            raise InvalidModel(
                f"{archive_name} holds a link, device or other special file: {raw.name!r}."
            )
        if not path.parts:  # "./", the root itself
            continue
        paths.add(path, is_folder=raw.is_folder)
        if raw.size_bytes < 0:  # it would make room for others in the total
            raise InvalidModel(f"Archive entry {path} claims a negative size.")
        total_bytes += raw.size_bytes
        if total_bytes > MAX_UNPACKED_BYTES:
            raise InvalidModel(
                f"{archive_name} unpacks to more than {MAX_UNPACKED_BYTES // 1024**3} GiB."
            )
        allowed_bytes = max(RATIO_FREE_BYTES, MAX_RATIO * raw.packed_bytes)
        if raw.size_bytes > allowed_bytes:
            raise InvalidModel(
                f"Archive entry {path} unpacks to more than {MAX_RATIO} times its packed size."
            )
        yield Entry(path, raw.is_folder, raw.size_bytes, raw.open)


def _inside(name: str, archive_name: str) -> PurePosixPath:
    # A name of a MiB packs to a kB, and to walk the folders in it takes the square of its length.
    if len(name) > MAX_NAME_CHARS:
        raise InvalidModel(f"{archive_name} has a name of more than {MAX_NAME_CHARS} characters.")
    path = PurePosixPath(name)
    if len(path.parts) > MAX_PARTS:
        raise InvalidModel(f"{archive_name} has a name of more than {MAX_PARTS} parts.")
    is_foreign = "\\" in name or "\0" in name or re.match(r"[A-Za-z]:", name)
    if path.is_absolute() or ".." in path.parts or is_foreign:
        raise InternalError(f"Failed to save model: {archive_name}")
    return path


class _Paths:
    """The paths seen so far, as a file system that ignores case would tell them apart."""

    def __init__(self, archive_name: str) -> None:
        self._archive_name = archive_name
        self._seen: dict[str, tuple[PurePosixPath, bool]] = {}
        self._stated: set[PurePosixPath] = set()
        self._left_chars = MAX_NAMES_CHARS

    def add(self, path: PurePosixPath, *, is_folder: bool) -> None:
        if path in self._stated:
            raise InvalidModel(f"Archive entry {path} is there twice.")
        self._stated.add(path)
        self._note(path, is_folder=is_folder)
        for parent in path.parents:
            if not self._note(parent, is_folder=True):
                break  # those around it were noted with it

    def _note(self, path: PurePosixPath, *, is_folder: bool) -> bool:
        """Returns whether the path is new."""
        text = str(path)
        folded = unicodedata.normalize("NFC", text).casefold()
        known = self._seen.get(folded)
        if known is not None and known != (path, is_folder):
            raise InvalidModel(f"Archive entry {path} clashes with another entry's name.")
        if known is None:
            self._left_chars -= len(text)
            if self._left_chars < 0:
                raise InvalidModel(
                    f"{self._archive_name}'s names come to more than {MAX_NAMES_CHARS} characters."
                )
            self._seen[folded] = path, is_folder
        return known is None


def _zip_entries(bundle: zipfile.ZipFile) -> Iterator[_Raw]:
    for info in bundle.infolist():
        if info.compress_type not in _ZIP_METHODS:
            raise InvalidModel(
                f"Archive entry {info.filename!r} is packed by another method than deflate."
            )
        # The upper half holds the Unix mode where a Unix tool wrote the zip, else zero.
        file_type = stat.S_IFMT(info.external_attr >> 16)
        yield _Raw(
            info.filename,
            info.is_dir(),
            file_type in (0, stat.S_IFREG, stat.S_IFDIR),
            info.file_size,
            info.compress_size,
            partial(bundle.open, info),
        )


def _tar_entries(tar: tarfile.TarFile, stream: "_CappedStream") -> Iterator[_Raw]:
    while (member := tar.next()) is not None:
        # tarfile keeps each entry, and gives each a copy of the headers that are to hold for all:
        # of a few kB it would make gigabytes. Nothing in them matters here.
        tar.members = []  # type: ignore[attr-defined]
        tar.pax_headers = {}
        stream.begin_content()
        yield _Raw(
            member.name,
            member.isdir(),
            # A sparse file is regular to tarfile, yet unpacks to any size that it likes.
            (member.isreg() and not member.issparse()) or member.isdir(),
            member.size,
            member.size,  # entries are not packed one by one; _CappedStream watches the whole
            partial(_open_member, tar, member),
        )
        stream.begin_header()


def _open_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(member)
    assert stream is not None  # only of what is neither file nor link, which _checked refuses
    return stream


@contextmanager
def _open_tar(path: Path) -> Iterator[Iterator[_Raw]]:
    limit_bytes = max(RATIO_FREE_BYTES, MAX_RATIO * path.stat().st_size)
    with path.open("rb") as plain:
        is_gzip = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        with gzip.GzipFile(fileobj=plain) if is_gzip else nullcontext(plain) as content:
            capped = _CappedStream(content, limit_bytes, path.name)
            with tarfile.open(fileobj=capped, mode="r:") as tar:  # type: ignore[call-overload]
                yield _tar_entries(tar, capped)


class _CappedStream:
    """A tar, unzipped or plain, that ends in an error when it inflates beyond all measure.

    So does an entry whose headers, which tarfile reads in one piece each, of whatever size they
    claim, come to more than MAX_HEADER_BYTES.
    """

    def __init__(
        self, inner: gzip.GzipFile | IO[bytes], limit_bytes: int, archive_name: str
    ) -> None:
        self._inner = inner
        self._limit_bytes = limit_bytes
        self._archive_name = archive_name
        self.begin_header()

    def begin_header(self) -> None:
        self._is_in_header, self._header_bytes = True, 0

    def begin_content(self) -> None:
        self._is_in_header, self._header_bytes = False, 0

    def read(self, size: int) -> bytes:
        if self._is_in_header:
            self._header_bytes += size
        if not 0 <= size <= CHUNK_BYTES or self._header_bytes > MAX_HEADER_BYTES:
            raise InvalidModel(f"{self._archive_name} has an oversized header.")
        self._check(self._inner.tell() + size)
        return self._inner.read(size)

    def seek(self, position: int) -> int:
        self._check(position)
        return self._inner.seek(position)

    def tell(self) -> int:
        return self._inner.tell()

    def _check(self, position: int) -> None:
        # One chunk of grace: tarfile asks for whole blocks beyond the end.
        if position > self._limit_bytes + CHUNK_BYTES:
            raise InvalidModel(
                f"{self._archive_name} unpacks to more than {MAX_RATIO} times its packed size."
            )
