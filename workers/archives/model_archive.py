"""Inspects archives and unpacks them into work_dir/<sha256>.<owner>.<number>.

Each version of a model has a copy of its own, which its handler may change. One that is not as it
was unpacked is replaced by a new one before the next worker starts.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from batching.errors import InternalError, InvalidModel
from batching.models.registration import RUNTIMES, name_of_archive
from batching.models.spec import DEFAULT_VERSION, ArchiveInfo
from batching.settings.files import load_yaml
from workers.archives.archive_entries import CHUNK_BYTES, Entry, read_entries
from workers.archives.staging import MODEL, folder_to_unpack_in, free_place, is_as_made, write_stamp

MANIFEST_PATH = PurePosixPath("MAR-INF/MANIFEST.json")
DEFAULT_FUNCTION = "handle"
BUILT_IN_PACKAGE = "ts.torch_handler"
# The manifest and model-config.yaml are read into memory.
MAX_TEXT_BYTES = 1024**2
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
# TorchServe's sentence, which names another file than it means.
_UNPARSED = "Failed to parse signature.json. MANIFEST.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
# The owner of a copy that no worker has seen: the next version that needs one takes it over.
_NOBODY = "unused"
# What a file system says of a name that it cannot hold.
_NO_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
log = logging.getLogger(__name__)


class ArchiveChanged(InvalidModel):
    """The archive is not the one that was registered."""


# --- what an archive says of itself


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
        before = path.stat()
        reader = _Reader(path)
        manifest = reader.manifest()
        config = reader.config(manifest)
        sha256 = hash_archive(path)
        if not path.is_dir():
            if work_dir is None:
                _read_all(path)
            elif not any(map(is_as_made, work_dir.glob(f"{sha256}.*"))):
                _unpack(path, free_place(f"{sha256}.{_NOBODY}", work_dir), before)
        _require_same(path, before)
    except (OSError, InternalError) as error:
        raise not_saved(url, path, error) from error
    model = _model_of(manifest)
    return ArchiveInfo(
        url=url,
        sha256=sha256,
        model_name=_as_text(model.get("modelName")) or name_of_archive(path.name),
        model_version=_as_text(model.get("modelVersion")) or DEFAULT_VERSION,
        handler=_as_text(model.get("handler")) or "",
        runtime=(manifest or {}).get("runtime", "python"),
        manifest=manifest,
        config=_config_as_json(config, _config_file_of(manifest)),
    )


def read_model_config(model_dir: Path, manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns model-config.yaml of an unpacked model as Python values; {} when it has none."""
    return _Reader(model_dir).config(manifest)


def split_handler(handler: str) -> tuple[str, str]:
    """Splits `some/path/file.py:function` into (`file`, `function`)."""
    file, _, function_name = handler.partition(":")
    return PurePosixPath(file).name.removesuffix(".py"), function_name or DEFAULT_FUNCTION


def hash_archive(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes.

    Of a folder, that of its manifest and of the files that this names: a handler may write others
    beside them, and a folder is used where it lies.

    Raises:
        InvalidModel: one of those files is a link that leaves the folder.
    """
    digest = hashlib.sha256()
    if not path.is_dir():
        _hash_file(path, digest)
        return digest.hexdigest()
    root = _without_wrapper(path)
    for name in sorted({str(MANIFEST_PATH), *_named_files(_Reader(path).manifest())}):
        file = root / name
        if not file.is_file():
            continue
        if not file.resolve().is_relative_to(path.resolve()):
            raise InvalidModel(f"{path.name} holds a link out of it: {name!r}.")
        digest.update(f"{name}\0{file.stat().st_size}\0".encode())
        _hash_file(file, digest)
    return digest.hexdigest()


def _hash_file(path: Path, digest: "hashlib._Hash") -> None:
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._root = PurePosixPath()
        if not path.is_dir():
            with read_entries(path) as entries:
                self._root = _wrapper([entry.path for entry in entries if not entry.is_folder])

    def manifest(self) -> dict[str, Any] | None:
        text = self._read(MANIFEST_PATH)
        return None if text is None else _parse_manifest(text)

    def config(self, manifest: Mapping[str, Any] | None) -> dict[str, Any]:
        file_name = _config_file_of(manifest)
        if not file_name:
            return {}
        return _parse_config(self._read(PurePosixPath(file_name)), file_name)

    def _read(self, relative: PurePosixPath) -> bytes | None:
        content = self._in_folder(relative) if self._path.is_dir() else self._in_archive(relative)
        if content is not None and len(content) > MAX_TEXT_BYTES:
            raise InvalidModel(f"{relative} is larger than {MAX_TEXT_BYTES} bytes.")
        return content

    def _in_folder(self, relative: PurePosixPath) -> bytes | None:
        file = _without_wrapper(self._path) / relative
        if not file.resolve().is_relative_to(self._path.resolve()) or not file.is_file():
            return None
        with file.open("rb") as stream:
            return stream.read(MAX_TEXT_BYTES + 1)

    def _in_archive(self, relative: PurePosixPath) -> bytes | None:
        content = b""
        with read_entries(self._path) as entries:
            for entry in entries:
                if entry.path == self._root / relative and not entry.is_folder:
                    for chunk in entry.chunks():
                        content += chunk
                        if len(content) > MAX_TEXT_BYTES:
                            break
                    return content
        return None


def _read_all(path: Path) -> None:
    """Reads the whole archive once, as unpacking would; zip compares its CRC."""
    with read_entries(path) as entries:
        for entry in entries:
            for _ in entry.chunks() if not entry.is_folder else ():
                pass


def _parse_manifest(text: bytes) -> dict[str, Any]:
    """Returns a manifest that names a model; version and runtime may be left out.

    Source: TorchServe 0.12 ModelArchive.validate; the texts are its own.
    """
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
    """Yields the files that a manifest may name, relative to the model's folder; some are none."""
    for name in filter(None, map(_as_text, map(_model_of(manifest).get, _FILE_KEYS))):
        module = name.partition(":")[0]
        for file in (name, module, f"{module}.py"):
            if "\0" not in file and not {"/", ".."} & {*PurePosixPath(file).parts}:
                yield file


def _parse_config(text: bytes | None, config_file: str) -> dict[str, Any]:
    if text is None:
        raise InvalidModel(f"The manifest names {config_file}, but the archive does not hold it.")
    try:
        config = load_yaml(text)
    except ValueError as error:
        raise InvalidModel(f"{config_file} is not valid YAML: {error}.") from error
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise InvalidModel(f"{config_file} is not a YAML mapping.")
    return config


def _config_as_json(config: dict[str, Any], config_file: str) -> dict[str, Any]:
    """Returns the config as it travels; a worker reads the file again and sees dates and the like.

    JSON cannot express a key that is a date.
    """
    try:
        return dict(json.loads(json.dumps(config, default=str)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{config_file} holds what JSON cannot express: {error}.") from error


def _as_text(value: Any) -> str | None:
    """Returns text as it is, a number as text (`"modelVersion": 1.0`), and None for the rest."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else None


# --- unpacking


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
    copy = free_place(f"{sha256}.{owner}", work_dir, is_exact=is_exact)
    if not is_as_made(copy) and is_as_made(unused := work_dir / f"{sha256}.{_NOBODY}.0"):
        with contextlib.suppress(OSError):  # another process was faster
            unused.rename(copy)
    return copy / MODEL if is_as_made(copy) else None


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
    before = path.stat()
    if hash_archive(path) != sha256:
        raise ArchiveChanged(
            f"{path.name} has changed since it was registered: its SHA-256 differs. Put the "
            "registered one back, or unregister the model and register it again."
        )
    try:
        copy = free_place(f"{sha256}.{owner}", work_dir, is_exact=is_exact)
        return _unpack(path, copy, before)
    except OSError as error:
        raise not_saved(path.name, work_dir, error) from error


def not_saved(name: str, path: Path, error: Exception) -> InternalError:
    """Returns the client's error for an archive that could not be read or written, and logs it."""
    log.error("not saved model=%s at=%s: %s", name, path, error)
    return InternalError(f"Failed to save model: {name}")


def _require_same(path: Path, before: os.stat_result) -> None:
    now = path.stat()
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    if any(getattr(now, field) != getattr(before, field) for field in fields):
        raise InvalidModel(f"{path.name} was replaced while it was read: register it again.")


def _unpack(path: Path, target: Path, before: os.stat_result) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with folder_to_unpack_in(target.parent) as staging:
        content, copy = staging / "content", staging / "copy"
        if path.is_dir():
            copy.mkdir()
            (copy / MODEL).symlink_to(_without_wrapper(path.resolve()), target_is_directory=True)
        else:
            content.mkdir()
            with read_entries(path) as entries:
                for entry in entries:
                    write_entry(entry, content)
            copy.mkdir()
            _without_wrapper(content).rename(copy / MODEL)
        write_stamp(copy)
        _require_same(path, before)
        try:
            copy.rename(target)
        except OSError:
            if not is_as_made(target):  # otherwise another process was faster, with the same
                raise
    return target / MODEL


def write_entry(entry: Entry, folder: Path) -> None:
    """Writes an archive's file or folder below this one."""
    path = folder / entry.path
    try:
        (path if entry.is_folder else path.parent).mkdir(parents=True, exist_ok=True)
        if entry.is_folder:
            return
        with path.open("xb") as stream:
            for chunk in entry.chunks():
                stream.write(chunk)
    except FileExistsError as error:
        # To this file system two names may be one, as model.py and Model.py.
        taken = Path(error.filename)
        there = next((other for other in taken.parent.iterdir() if other.samefile(taken)), taken)
        first, second = (str(one.relative_to(folder)) for one in (there, path))
        raise InvalidModel(
            f"Archive entries {first!r} and {second!r} have one name here."
        ) from error
    except OSError as error:
        if error.errno not in _NO_NAME:
            raise
        raise InvalidModel(
            f"Archive entry {str(entry.path)!r} cannot be a file here: {error.strerror}."
        ) from error


def _wrapper(files: list[PurePosixPath]) -> PurePosixPath:
    tops = {path.parts[0] for path in files}
    is_wrapped = len(tops) == 1 and all(len(path.parts) > 1 for path in files)
    if not is_wrapped or MANIFEST_PATH.parts[0] in tops:
        return PurePosixPath()
    return PurePosixPath(tops.pop())


def _without_wrapper(folder: Path) -> Path:
    inside = list(folder.iterdir())
    is_wrapped = len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink()
    return inside[0] if is_wrapped and inside[0].name != MANIFEST_PATH.parts[0] else folder
