"""Inspects archives and unpacks them into work_dir/<sha256>.<owner>.<number>.

Each version of a model has a copy of its own, which its handler may change. A changed copy is
replaced by a new one before the next worker starts.
"""

import contextlib
import errno
import gzip
import hashlib
import json
import logging
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from batching.errors import InternalError, InvalidModel
from batching.models.registration import RUNTIMES, name_of_archive
from batching.models.spec import DEFAULT_VERSION, ArchiveInfo
from batching.settings.files import load_yaml
from workers.archives.staging import MODEL, folder_to_unpack_in, free_place, is_as_made, write_stamp

_MANIFEST_FILE = "MAR-INF/MANIFEST.json"
DEFAULT_FUNCTION = "handle"
BUILT_IN_PACKAGE = "ts.torch_handler"
# The manifest and model-config.yaml are read into memory.
_MAX_TEXT_BYTES = 1024**2
# LSP is the C++ backend's: a valid manifest, which the registration then refuses.
_RUNTIMES = (*RUNTIMES, "LSP")
_FILE_KEYS = (
    "handler",
    "modelFile",
    "serializedFile",
    "configFile",
    "requirementsFile",
    "sourceVocab",
    "target",
)
# TorchServe's sentence, which names the wrong file.
_UNPARSED = "Failed to parse signature.json. MANIFEST.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
# The owner of a copy that no worker has seen: the next version that needs one takes it over.
_NOBODY = "unused"
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
log = logging.getLogger(__name__)


# --- what an archive says of itself


def inspect_archive(path: Path, url: str, work_dir: Path) -> ArchiveInfo:
    """Returns what the manifest and model-config.yaml of an archive or a folder say.

    An archive is unpacked in the same pass, for the workers that will need its files. `url` is the
    name that the operator gave it.

    Raises:
        InvalidModel: not an archive, over a limit, or a manifest that describes no model.
        InternalError: an entry would land outside, or the disk fails: `Failed to save model`.
    """
    try:
        before = path.stat()
        sha256 = hash_archive(path)
        if path.is_dir():
            info = _described(_without_wrapper(path), path.name, url, sha256)
            _require_same(path, before)
            return info
        for copy in filter(is_as_made, work_dir.glob(f"{sha256}.*")):
            info = _described(copy / MODEL, path.name, url, sha256)
            if is_as_made(copy):  # otherwise it was replaced meanwhile
                return info
        with folder_to_unpack_in(work_dir) as staging:
            copy = _unpacked(path, staging, before)
            info = _described(copy / MODEL, path.name, url, sha256)
            _move(copy, free_place(f"{sha256}.{_NOBODY}", work_dir))
            return info
    except (OSError, InternalError) as error:
        raise not_saved(url, path, error) from error


def _described(folder: Path, file_name: str, url: str, sha256: str) -> ArchiveInfo:
    manifest = _manifest_in(folder)
    config = read_model_config(folder, manifest)
    try:
        # A worker reads the file again, and sees dates and the like.
        config = json.loads(json.dumps(config, default=str))
    except (TypeError, ValueError, RecursionError) as error:
        name = _config_file_of(manifest)
        raise InvalidModel(f"{name} holds what JSON cannot express: {error}.") from error
    model = _model_of(manifest)
    return ArchiveInfo(
        url=url,
        sha256=sha256,
        model_name=_as_text(model.get("modelName")) or name_of_archive(file_name),
        model_version=_as_text(model.get("modelVersion")) or DEFAULT_VERSION,
        handler=_as_text(model.get("handler")) or "",
        runtime=(manifest or {}).get("runtime", "python"),
        manifest=manifest,
        config=config,
    )


def read_model_config(folder: Path, manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns model-config.yaml of an unpacked model as Python values; {} when it has none."""
    if not (file_name := _config_file_of(manifest)):
        return {}
    if (text := _read(folder, file_name)) is None:
        raise InvalidModel(f"The manifest names {file_name}, but the archive does not hold it.")
    try:
        config = load_yaml(text)
    except ValueError as error:
        raise InvalidModel(f"{file_name} is not valid YAML: {error}.") from error
    if config is not None and not isinstance(config, dict):
        raise InvalidModel(f"{file_name} is not a YAML mapping.")
    return config or {}


def split_handler(handler: str) -> tuple[str, str]:
    """Splits `some/path/file.py:function` into (`file`, `function`)."""
    file, _, function_name = handler.partition(":")
    return PurePosixPath(file).name.removesuffix(".py"), function_name or DEFAULT_FUNCTION


def hash_archive(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, or of a folder's manifest and the files it names.

    A handler may write other files beside these, as a folder is used where it lies.

    Raises:
        InvalidModel: one of those files is a link that leaves the folder.
    """
    digest = hashlib.sha256()

    def add(file: Path) -> None:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)

    if not path.is_dir():
        add(path)
        return digest.hexdigest()
    root = _without_wrapper(path)
    for name in sorted({_MANIFEST_FILE, *_named_files(_manifest_in(root))}):
        file = root / name
        if not file.is_file():
            continue
        if not file.resolve().is_relative_to(path.resolve()):
            raise InvalidModel(f"{path.name} holds a link out of it: {name!r}.")
        digest.update(f"{name}\0{file.stat().st_size}\0".encode())
        add(file)
    return digest.hexdigest()


def _read(folder: Path, file_name: str) -> bytes | None:
    """Returns the content of a file in the folder; None if it is missing or lies elsewhere."""
    if "\0" in file_name:
        return None
    file = folder / file_name
    if not file.resolve().is_relative_to(folder.resolve()) or not file.is_file():
        return None
    with file.open("rb") as stream:
        content = stream.read(_MAX_TEXT_BYTES + 1)
    if len(content) > _MAX_TEXT_BYTES:
        raise InvalidModel(f"{file_name} is larger than {_MAX_TEXT_BYTES} bytes.")
    return content


def _manifest_in(folder: Path) -> dict[str, Any] | None:
    """Returns a manifest that names a model; version and runtime may be left out.

    Source: TorchServe 0.12 ModelArchive.validate; the texts are its own.
    """
    if (text := _read(folder, _MANIFEST_FILE)) is None:
        return None
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{_UNPARSED} is not JSON: {error}.") from error
    if not isinstance(manifest, dict):
        raise InvalidModel(f"{_UNPARSED} is not a JSON object.")
    model = manifest.get("model", {})
    if not isinstance(model, dict):
        raise InvalidModel("Missing Model entry in manifest file.")
    if not _as_text(model.get("modelName")):
        raise InvalidModel("Model name is not defined.")
    if not _as_text(model.get("modelVersion", DEFAULT_VERSION)):
        raise InvalidModel("Model version is not defined.")
    if manifest.get("runtime", "python") not in _RUNTIMES:
        raise InvalidModel("Runtime is not defined or invalid.")
    return manifest


def _model_of(manifest: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (manifest or {}).get("model") or {}


def _config_file_of(manifest: Mapping[str, Any] | None) -> str:
    return _as_text(_model_of(manifest).get("configFile")) or ""


def _named_files(manifest: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields the files that a manifest may name, relative to the folder; they need not exist."""
    for name in filter(None, map(_as_text, map(_model_of(manifest).get, _FILE_KEYS))):
        module = name.partition(":")[0]
        for file in (name, module, f"{module}.py"):
            if "\0" not in file and not {"/", ".."} & {*PurePosixPath(file).parts}:
                yield file


def _as_text(value: Any) -> str | None:
    """Returns text as it is, a number (`"modelVersion": 1.0`) as text, and None for the rest."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else None


# --- unpacking


def find_unpacked(
    sha256: str, work_dir: Path, owner: str = _NOBODY, *, is_exact: bool = False
) -> Path | None:
    """Returns the folder that was unpacked earlier for this owner, if it has not changed since.

    With `is_exact`, further files, such as a cache, count as a change, unless a worker uses it.
    """
    if not _SHA256.fullmatch(sha256):  # it comes from Redis, and becomes a path
        raise InvalidModel("The archive is registered without a SHA-256: register it again.")
    copy = free_place(f"{sha256}.{owner}", work_dir, is_exact=is_exact)
    if not is_as_made(copy) and is_as_made(unused := work_dir / f"{sha256}.{_NOBODY}.0"):
        with contextlib.suppress(OSError):  # another process was faster
            unused.rename(copy)
    return copy / MODEL if is_as_made(copy) else None


def unpack_archive(
    path: Path, sha256: str, work_dir: Path, owner: str = _NOBODY, *, is_exact: bool = False
) -> Path:
    """Unpacks the model's files, unless that was done before, and returns their folder.

    A folder is not copied but linked to, as TorchServe does: weights may be large. Of several
    processes that race, the first to rename wins, and the others discard their copies.

    Raises:
        InvalidModel: the archive is not the one with that SHA-256, or over a limit.
        InternalError: an entry would land outside, or the disk fails.
    """
    before = path.stat()
    if hash_archive(path) != sha256:
        raise InvalidModel(
            f"{path.name} has changed since it was registered: its SHA-256 differs. Put the "
            "registered one back, or unregister the model and register it again."
        )
    unpacked = find_unpacked(sha256, work_dir, owner, is_exact=is_exact)
    if unpacked is not None:
        return unpacked
    try:
        with folder_to_unpack_in(work_dir) as staging:
            copy = _unpacked(path, staging, before)
            place = free_place(f"{sha256}.{owner}", work_dir, is_exact=is_exact)
            _move(copy, place)
            return place / MODEL
    except OSError as error:
        raise not_saved(path.name, work_dir, error) from error


def not_saved(name: str, path: Path, error: Exception) -> InternalError:
    """Returns the client's error for an archive that could not be read or written, and logs it."""
    log.error("not saved model=%s at=%s: %s", name, path, error)
    return InternalError(f"Failed to save model: {name}")


def _unpacked(path: Path, staging: Path, before: os.stat_result) -> Path:
    """Makes a complete copy in a staging folder."""
    content, copy = staging / "content", staging / "copy"
    copy.mkdir()
    if path.is_dir():
        (copy / MODEL).symlink_to(_without_wrapper(path.resolve()), target_is_directory=True)
    else:
        content.mkdir()
        unpack_entries(path, content)
        _without_wrapper(content).rename(copy / MODEL)
    write_stamp(copy)
    _require_same(path, before)
    return copy


def _require_same(path: Path, before: os.stat_result) -> None:
    now = path.stat()
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    if any(getattr(now, field) != getattr(before, field) for field in fields):
        raise InvalidModel(f"{path.name} was replaced while it was read: register it again.")


def _move(copy: Path, place: Path) -> None:
    try:
        copy.rename(place)
    except OSError:
        if not is_as_made(place):  # otherwise another process was faster, with the same
            raise


def _without_wrapper(folder: Path) -> Path:
    inside = list(folder.iterdir())
    is_wrapped = len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink()
    return inside[0] if is_wrapped and inside[0].name != "MAR-INF" else folder


# --- entries of archives from any source: each is checked before a byte of it is used


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
    left_bytes = max_unpacked_bytes
    try:
        with contextlib.closing(_entries(path)) as entries:
            for count, entry in enumerate(entries, start=1):
                if count > MAX_ENTRIES:
                    raise InvalidModel(f"{path.name} has more than {MAX_ENTRIES} entries.")
                name = PurePosixPath(entry.name)
                # Tools of Windows write backslashes.
                parts = re.split(r"[/\\]", entry.name)
                if name.is_absolute() or ".." in parts or "\0" in entry.name:
                    raise InternalError(f"Failed to save model: {path.name}")
                if not entry.is_plain:
                    raise InvalidModel(
                        f"{path.name} holds a link, device or other special file: {entry.name!r}."
                    )
                if entry.size_bytes < 0:  # it would make room for others in the total
                    raise InvalidModel(f"Archive entry {entry.name!r} claims a negative size.")
                left_bytes -= entry.size_bytes
                if left_bytes < 0:
                    limit = f"{max_unpacked_bytes // 1024**3} GiB"
                    raise InvalidModel(f"{path.name} unpacks to more than {limit}.")
                _write(entry, folder / name)
    except _BROKEN as error:
        is_mar, why = path.suffix == ".mar", str(error).partition("\n")[0]
        kind = "a zip (.mar)" if is_mar else "a tar or tar.gz (a zip has to be named .mar)"
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


def _entries(path: Path) -> Generator[_Entry]:
    """Yields the entries of a zip (.mar) or else a tar, gzipped or not."""
    if path.suffix == ".mar":
        with zipfile.ZipFile(path) as bundle:
            for info in bundle.infolist():
                name = info.filename
                if info.compress_type not in _ZIP_METHODS:
                    raise InvalidModel(
                        f"Archive entry {name!r} is packed by another method than deflate."
                    )
                # The upper half holds the Unix mode where a Unix tool wrote the zip, else zero.
                is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
                opening = partial(bundle.open, info)
                yield _Entry(name, info.is_dir(), is_plain, info.file_size, opening)
        return
    with path.open("rb") as stream:
        is_gzip = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        content: Any = _InPieces(gzip.GzipFile(fileobj=stream) if is_gzip else stream)
        with tarfile.open(fileobj=content, mode="r:") as tar:
            for member in tar:
                # To tarfile a sparse file is regular, yet it may unpack to any size.
                is_plain = (member.isreg() and not member.issparse()) or member.isdir()
                extracting = partial(tar.extractfile, member)
                yield _Entry(member.name, member.isdir(), is_plain, member.size, extracting)


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
