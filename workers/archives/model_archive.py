"""Inspects archives and unpacks them into work_dir/<sha256>.<owner>.<number>.

Each version of a model has a copy of its own, which its handler may change. One that is not as it
was unpacked is replaced by a new one before the next worker starts.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from batching.errors import InternalError, InvalidModel
from batching.models.registration import name_of_archive
from batching.models.spec import DEFAULT_VERSION, ArchiveInfo
from workers.archives.archive_entries import CHUNK_BYTES, Entry, read_chunks, read_entries
from workers.archives.manifest import (
    MANIFEST_PATH,
    as_text,
    config_as_json,
    config_file_of,
    named_files,
    parse_config,
    parse_manifest,
)
from workers.archives.staging import MODEL, folder_to_unpack_in, free_place, is_as_made, write_stamp

# The manifest and model-config.yaml are read into memory.
MAX_TEXT_BYTES = 1024**2
_SHA256 = re.compile(r"[0-9a-f]{64}")
# The owner of a copy that no worker has seen: the next version that needs one takes it over.
_NOBODY = "unused"
# What a file system says of a name that it cannot hold.
_NO_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
log = logging.getLogger(__name__)


class ArchiveChanged(InvalidModel):
    """The archive is not the one that was registered."""


def inspect_archive(path: Path, url: str, work_dir: Path | None = None) -> ArchiveInfo:
    """Returns what the archive says of itself, after every entry was checked against the limits.

    Args:
        path: a .mar, a tar or tar.gz, or a folder.
        url: how the operator named it; repeated in texts and kept in the info.
        work_dir: where an archive is unpacked in the same pass, for the workers that will need its
            files; None: nothing is written.

    Raises:
        InvalidModel: not an archive, over a limit, or a manifest that describes no model.
        InternalError: an entry would land outside, or the disk fails: `Failed to save model`.
    """
    try:
        found = path.stat()
        reader = _FolderReader(path) if path.is_dir() else _ArchiveReader(path)
        manifest_text = reader.read_text(MANIFEST_PATH)
        manifest = None if manifest_text is None else parse_manifest(manifest_text)
        config, config_file = {}, config_file_of(manifest)
        if config_file:
            config = parse_config(reader.read_text(PurePosixPath(config_file)), config_file)
        sha256 = hash_archive(path)
        if isinstance(reader, _ArchiveReader):
            if work_dir is None:
                reader.check()
            elif not any(map(is_as_made, work_dir.glob(f"{sha256}.*"))):
                _unpack(path, free_place(f"{sha256}.{_NOBODY}", work_dir), found)
        _require_same(path, found)
    except (OSError, InternalError) as error:
        raise not_saved(url, path, error) from error
    model = (manifest or {}).get("model") or {}
    return ArchiveInfo(
        url=url,
        sha256=sha256,
        model_name=as_text(model.get("modelName")) or name_of_archive(path.name),
        model_version=as_text(model.get("modelVersion")) or DEFAULT_VERSION,
        handler=as_text(model.get("handler")) or "",
        runtime=(manifest or {}).get("runtime", "python"),
        manifest=manifest,
        config=config_as_json(config, config_file),
    )


def find_unpacked(
    sha256: str, work_dir: Path, owner: str = _NOBODY, *, is_exact: bool = False
) -> Path | None:
    """Returns the folder that was unpacked earlier, if one is as it was then.

    Args:
        sha256: of the archive.
        work_dir: where archives are unpacked.
        owner: a word that stands for the version whose workers use the folder.
        is_exact: not one that has further files, as of a cache, unless a worker lives in it.
    """
    if not _SHA256.fullmatch(sha256):  # it comes from Redis, and becomes a path
        raise InvalidModel("The archive is registered without a SHA-256: register it anew.")
    place = free_place(f"{sha256}.{owner}", work_dir, is_exact=is_exact)
    if not is_as_made(place) and is_as_made(unused := work_dir / f"{sha256}.{_NOBODY}.0"):
        with contextlib.suppress(OSError):  # another process was faster
            unused.rename(place)
    return place / MODEL if is_as_made(place) else None


def unpack_archive(
    path: Path, sha256: str, work_dir: Path, owner: str = _NOBODY, *, is_exact: bool = False
) -> Path:
    """Unpacks the model's files, unless they are there, and returns their folder.

    A folder is not copied but linked to, as TorchServe does: weights may be large. Several
    processes may race; the first rename wins and the others throw theirs away.

    Raises:
        ArchiveChanged: the archive is not the one with that SHA-256.
        InvalidModel: it is over a limit.
        InternalError: an entry would land outside, or the disk fails.
    """
    unpacked = find_unpacked(sha256, work_dir, owner, is_exact=is_exact)
    if unpacked is not None:
        return unpacked
    found = path.stat()
    if hash_archive(path) != sha256:
        raise ArchiveChanged(
            f"{path.name} has changed since it was registered: its SHA-256 differs. Put the "
            "registered one back, or unregister the model and register it again."
        )
    try:
        place = free_place(f"{sha256}.{owner}", work_dir, is_exact=is_exact)
        return _unpack(path, place, found)
    except OSError as error:
        raise not_saved(path.name, work_dir, error) from error


def not_saved(name: str, place: Path, error: Exception) -> InternalError:
    """Returns the client's error for an archive that could not be read or written, and logs it.

    Args:
        name: how the answer names the archive.
        place: the file or folder; a full disk's error names none.
        error: the cause.
    """
    log.error("not saved model=%s at=%s: %s", name, place, error)
    return InternalError(f"Failed to save model: {name}")


def hash_archive(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes.

    Of a folder, that of its manifest and of the files that this names: a handler may write others
    beside them, and a folder is used where it lies.

    Raises:
        InvalidModel: one of those files is a link that leaves the folder.
    """
    digest = hashlib.sha256()
    if not path.is_dir():
        for chunk in _file_chunks(path):
            digest.update(chunk)
        return digest.hexdigest()
    reader = _FolderReader(path)
    manifest_text = reader.read_text(MANIFEST_PATH)
    manifest = None if manifest_text is None else parse_manifest(manifest_text)
    root = _without_wrapper(path)
    for name in sorted({str(MANIFEST_PATH), *named_files(manifest)}):
        file = root / name
        if not file.is_file():
            continue
        if not file.resolve().is_relative_to(path.resolve()):
            raise InvalidModel(f"{path.name} holds a link out of it: {name!r}.")
        digest.update(f"{name}\0{file.stat().st_size}\0".encode())
        for chunk in _file_chunks(file):
            digest.update(chunk)
    return digest.hexdigest()


def read_model_config(model_dir: Path, manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns model-config.yaml of an unpacked model as Python values; {} when it has none.

    Raises:
        InvalidModel: the file that the manifest names is missing or not a YAML mapping.
    """
    config_file = config_file_of(manifest)
    if not config_file:
        return {}
    text = _FolderReader(model_dir).read_text(PurePosixPath(config_file))
    return parse_config(text, config_file)


@dataclass(frozen=True, slots=True)
class _FolderReader:
    path: Path

    def read_text(self, relative: PurePosixPath) -> bytes | None:
        file = _without_wrapper(self.path) / relative
        if not file.resolve().is_relative_to(self.path.resolve()) or not file.is_file():
            return None
        with file.open("rb") as stream:
            content = stream.read(MAX_TEXT_BYTES + 1)
        _check_size(len(content), relative)
        return content


class _ArchiveReader:
    """Reads single files of an archive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with read_entries(path) as entries:
            self._root = _wrapper([entry.path for entry in entries if not entry.is_folder])

    def check(self) -> None:
        """Reads the whole archive once, as unpacking would."""
        with read_entries(self._path) as entries:
            for entry in entries:
                for _ in read_chunks(entry) if not entry.is_folder else ():
                    pass  # counts the bytes; zip compares its CRC

    def read_text(self, relative: PurePosixPath) -> bytes | None:
        with read_entries(self._path) as entries:
            for entry in entries:
                if entry.path == self._root / relative and not entry.is_folder:
                    _check_size(entry.size_bytes, relative)
                    return b"".join(read_chunks(entry))
        return None


def _check_size(size_bytes: int, relative: PurePosixPath) -> None:
    if size_bytes > MAX_TEXT_BYTES:
        raise InvalidModel(f"{relative} is larger than {MAX_TEXT_BYTES} bytes.")


def _require_same(path: Path, found: os.stat_result) -> None:
    """Refuses an archive that was replaced while it was read, by a file or the target of a link."""
    now = path.stat()
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    if any(getattr(now, field) != getattr(found, field) for field in fields):
        raise InvalidModel(f"{path.name} was replaced while it was read: register it again.")


def _unpack(path: Path, place: Path, found: os.stat_result) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    with folder_to_unpack_in(place.parent) as staging:
        content, copy = staging / "content", staging / "copy"
        if path.is_dir():
            copy.mkdir()
            (copy / MODEL).symlink_to(_without_wrapper(path.resolve()), target_is_directory=True)
        else:
            _extract(path, content)
            copy.mkdir()
            _without_wrapper(content).rename(copy / MODEL)
        write_stamp(copy)
        _require_same(path, found)
        try:
            copy.rename(place)
        except OSError:
            if not is_as_made(place):  # otherwise another process was faster, with the same content
                raise
    return place / MODEL


def _extract(path: Path, folder: Path) -> None:
    folder.mkdir()
    with read_entries(path) as entries:
        for entry in entries:
            write_entry(entry, folder)


def write_entry(entry: Entry, folder: Path) -> None:
    """Writes an archive's file or folder below this one.

    Raises:
        InvalidModel: this file system cannot hold its name, or has given it to another entry.
    """
    place = folder / entry.path
    try:
        (place if entry.is_folder else place.parent).mkdir(parents=True, exist_ok=True)
        if entry.is_folder:
            return
        with place.open("xb") as stream:
            for chunk in read_chunks(entry):
                stream.write(chunk)
    except FileExistsError as error:
        # To this file system two names may be one, as model.py and Model.py.
        taken = Path(error.filename)
        there = next((one for one in taken.parent.iterdir() if one.samefile(taken)), taken)
        names = (str(one.relative_to(folder)) for one in (there, place))
        raise InvalidModel(
            "Archive entries {!r} and {!r} have one name here.".format(*names)
        ) from error
    except OSError as error:
        if error.errno not in _NO_NAME:
            raise
        raise InvalidModel(
            f"Archive entry {str(entry.path)!r} cannot be a file here: {error.strerror}."
        ) from error


def _wrapper(files: list[PurePosixPath]) -> PurePosixPath:
    """Returns the one folder around all files, as in a tgz of torch-model-archiver, or the root."""
    tops = {path.parts[0] for path in files}
    is_wrapped = len(tops) == 1 and all(len(path.parts) > 1 for path in files)
    if not is_wrapped or MANIFEST_PATH.parts[0] in tops:
        return PurePosixPath()
    return PurePosixPath(tops.pop())


def _without_wrapper(folder: Path) -> Path:
    inside = list(folder.iterdir())
    is_wrapped = len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink()
    return inside[0] if is_wrapped and inside[0].name != MANIFEST_PATH.parts[0] else folder


def _file_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
