"""Keeps a node's disk: archives' files, environments for their requirements, and their end.

    work_dir/environments/<hash>        an environment; its file `ready` is written last
    work_dir/environments/<hash>.lock   held by the node that makes it

An environment sees the packages of this one, torch above all, and adds to them. Models with the
same requirements share one, also over nodes of one machine.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.metadata
import logging
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import time
import venv
import weakref
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from batching.errors import DependenciesFailed, ServeError
from batching.models.spec import INSTALL_TIMEOUT_S, ModelSpec
from batching.process.child_process import exited, kill_group, spawn
from batching.process.daemon_thread import in_daemon_thread
from batching.process.outputs import read_lines
from batching.settings.settings import Settings
from workers.archives import fetch
from workers.archives import model_archive as archive
from workers.archives.staging import (
    ABANDONED_AFTER_S,
    mark_used,
    remove_abandoned,
    remove_unused,
    work_dir_of,
)

log = logging.getLogger(__name__)

FOLDER = "environments"
READY = "ready"
REQUIREMENTS = "requirements.txt"
LOCK_POLL_S = 0.2
# Within this time the workers of a model share a failure, and do not each wait for pip.
FAILURE_LASTS_S = 30.0
# In what pip says of a full disk, or a network that fails: another try may succeed.
_ERRNO = re.compile(r"\[Errno (\d{1,3})\]")
_PTH = "shared_with_the_server.pth"

MAX_REQUIREMENTS_BYTES = 1024**2
# Options that change where packages come from are the operator's to give, not the archive's.
_HARMLESS_OPTIONS = ("--pre", "--prefer-binary", "--only-binary", "--no-binary", "--require-hashes")
# Options of one requirement, on its line.
_REQUIREMENT_OPTIONS = ("--hash", "--config-settings", "--global-option")
_OPTION = re.compile(r"(?:^|\s)(-\S+)")
# Behind an option, pip may read further options out of these.
_QUOTES = re.compile(r"[\"'\\]")
# pip's own pattern begins with `\s+`, which takes hours for a line of blanks.
_COMMENT = re.compile(r"(^|\s)#.*$")
# Names a file of the archive: in another archive the same line may mean another file.
_LOCAL_FILE = re.compile(r"(^|@\s*|\s)(\.{0,2}/|file:)|\.(whl|zip|tar\.gz)\b")


class Prepared(NamedTuple):
    model_dir: Path
    python: Path


class ModelFiles:
    """Prepares the files of models in one node's model store and work folder."""

    def __init__(self, settings: Settings, *, install_timeout_s: float = INSTALL_TIMEOUT_S) -> None:
        self._settings = settings
        self._model_store = settings.model_store
        self._work_dir = work_dir_of(settings)
        self._environments = self._work_dir / FOLDER
        self._install_timeout_s = install_timeout_s
        # Weak: locks and tasks are kept for as long as a worker waits for them.
        self._unpacking: weakref.WeakValueDictionary[str, asyncio.Lock]
        self._unpacking = weakref.WeakValueDictionary()
        self._making: weakref.WeakValueDictionary[str, asyncio.Task[None]]
        self._making = weakref.WeakValueDictionary()
        # Name of an environment that could not be made -> when, and the error.
        self._failures: dict[str, tuple[float, DependenciesFailed]] = {}

    async def prepare(self, spec: ModelSpec, *, is_exact: bool = False) -> Prepared:
        """Unpacks the archive and installs its requirements, unless this host has them already.

        An archive is unpacked once for all workers of this node that need it, which may take
        minutes; other archives do not wait for it, unless they are downloads to the same file. With
        `is_exact`, the folder has no files that workers left, unless a worker still runs there.

        Raises:
            ServeError: the archive cannot be fetched, has changed since it was registered, or has
                requirements that cannot be installed.
        """
        model_dir = await in_daemon_thread(partial(self._find_unpacked, spec, is_exact=is_exact))
        if model_dir is None:
            name = fetch.name_of_download(spec.model_url) or spec.archive_sha256
            async with self._unpacking.setdefault(name, asyncio.Lock()):
                model_dir = await in_daemon_thread(partial(self._unpack, spec, is_exact=is_exact))
        return Prepared(model_dir, await self.python_for(spec, model_dir))

    def sweep(self, specs: Collection[ModelSpec]) -> None:
        """Marks the files of these models, and deletes what is not marked in `unused_files_kept`.

        Nodes may share a work folder: each marks what it needs, far more often than that.
        """
        kept_s = self._settings.unused_files_kept_s
        for spec in specs:
            # No SHA-256, or requirements that cannot be read.
            with contextlib.suppress(ServeError, OSError):
                unpacked, file_name = self._find_unpacked(spec), spec.requirements_file
                if unpacked and file_name and self._settings.install_py_dep_per_model:
                    requirements = read_requirements(unpacked, file_name)
                    name = environment_name(requirements, spec.archive_sha256)
                    mark_used(self._environments / name)
        remove_unused(self._work_dir, self._work_dir, older_than_s=kept_s)
        # pip works in none of them.
        aged_s = max(kept_s, ABANDONED_AFTER_S)
        remove_unused(self._environments, self._work_dir, older_than_s=aged_s)
        for folder in (self._work_dir, self._model_store):
            if folder is not None and folder.is_dir():
                remove_abandoned(folder)

    def forget(self, urls: Collection[str], *, kept: Collection[str] = ()) -> None:
        """Removes what was downloaded from these URLs, unless one in `kept` means the same file."""
        for url in urls:
            if any(fetch.may_share_a_file(url, other) for other in kept):
                continue
            try:
                if self._model_store is not None and fetch.remove_download(url, self._model_store):
                    log.info("removed download url=%s", url)
            except OSError as error:
                log.warning("download not removed url=%s: %s", url, error.strerror)

    def _unpack(self, spec: ModelSpec, *, is_exact: bool) -> Path:
        if (unpacked := self._find_unpacked(spec, is_exact=is_exact)) is not None:
            return unpacked
        path = fetch.locate_archive(spec.model_url, self._settings, is_registered=True)
        return archive.unpack_archive(
            path, spec.archive_sha256, self._work_dir, self._owner(spec), is_exact=is_exact
        )

    def _owner(self, spec: ModelSpec) -> str:
        """Returns a name for the unpacked files of this version, which no other version shares."""
        folder = ""
        if not fetch.name_of_download(spec.model_url):
            with contextlib.suppress(ServeError):  # what was unpacked serves without the archive
                path = fetch.locate_archive(spec.model_url, self._settings, is_registered=True)
                folder = str(path.resolve()) if path.is_dir() else ""
        return hashlib.sha256("\0".join((*spec.key, folder)).encode()).hexdigest()[:16]

    def _find_unpacked(self, spec: ModelSpec, *, is_exact: bool = False) -> Path | None:
        unpacked = archive.find_unpacked(
            spec.archive_sha256, self._work_dir, self._owner(spec), is_exact=is_exact
        )
        return unpacked if unpacked is not None and mark_used(unpacked.parent) else None

    # --- environments

    async def python_for(self, spec: ModelSpec, model_dir: Path) -> Path:
        """Installs the model's requirements and returns the interpreter that has them.

        Raises:
            DependenciesFailed: pip failed, took too long, or the disk failed, which is the cause
                then; the log has pip's output.
        """
        file_name = spec.requirements_file
        if not file_name or not self._settings.install_py_dep_per_model:
            if file_name:
                template = (
                    "model=%s version=%s: %s is not installed, install_py_dep_per_model is off"
                )
                log.warning(template, *spec.key, file_name)
            return Path(sys.executable)
        try:
            requirements = read_requirements(model_dir, file_name)
            folder = self._environments / environment_name(requirements, spec.archive_sha256)
            if not (_is_ready(folder) and mark_used(folder)):
                making = self._making.get(folder.name)
                if making is None or making.done():
                    cwd = (model_dir / file_name).parent
                    making = asyncio.create_task(self._make(spec, folder, requirements, cwd))
                    self._making[folder.name] = making
                await asyncio.shield(making)
            return _python_in(folder)
        except DependenciesFailed as error:
            raise DependenciesFailed(
                f"Custom pip package installation failed for model {spec.model_name}: "
                f"{error.message}"
            ) from error.__cause__
        except OSError as error:
            raise DependenciesFailed(
                f"Virtual environment creation failed for model {spec.model_name}: {error.strerror}"
            ) from error

    async def _make(self, spec: ModelSpec, folder: Path, requirements: str, cwd: Path) -> None:
        failed_s, failure = self._failures.get(folder.name, (0.0, None))
        if failure is not None and time.monotonic() - failed_s < FAILURE_LASTS_S:
            raise failure
        self._environments.mkdir(parents=True, exist_ok=True)
        try:
            async with (
                asyncio.timeout(self._install_timeout_s),
                _locked(folder.with_suffix(".lock")),
            ):
                if _is_ready(folder):  # another node made it meanwhile
                    return
                log.info("installing model=%s version=%s into=%s", *spec.key, folder)
                await in_daemon_thread(partial(_make_empty, folder))
                # With a BOM, or pip would take it to be in the locale's encoding.
                (folder / REQUIREMENTS).write_text(requirements, encoding="utf-8-sig")
                await self._install(spec, folder, cwd)
                (folder / READY).touch()
                log.info("installed model=%s version=%s", *spec.key)
        except (TimeoutError, DependenciesFailed) as error:
            if isinstance(error, TimeoutError):
                error = DependenciesFailed(f"not done within {self._install_timeout_s:.0f} s.")
            self._failures[folder.name] = time.monotonic(), error
            raise error from error.__cause__

    async def _install(self, spec: ModelSpec, folder: Path, cwd: Path) -> None:
        argv = [
            # -P: a tokenize.py of the model must not run instead of Python's.
            *(str(_python_in(folder)), "-P", "-m", "pip", "install"),
            *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-color"),
            *("--requirement", str(folder / REQUIREMENTS)),
        ]
        reason = ""

        def note_line(content: bytes) -> None:
            nonlocal reason
            characters = content.decode(errors="replace").strip()
            line = "".join(char if char.isprintable() else "?" for char in characters)
            if not line:
                return
            log.info("pip model=%s: %s", spec.model_name, line)
            # The last error, else the last line: behind "Exception:" the end of a traceback.
            is_error = line.startswith("ERROR:") and line != "ERROR: Exception:"
            if is_error or not reason.startswith("ERROR:"):
                reason = line

        # Build scripts are not to find the server's own modules.
        forbidden = f"PYTHONPATH|{self._settings.blacklist_env_vars}"
        environment = allowed_environment(os.environ, forbidden)
        pipe, same = subprocess.PIPE, subprocess.STDOUT
        child = spawn(argv, environment, stdout=pipe, stderr=same, cwd=cwd)
        try:
            assert child.stdout is not None
            await asyncio.wrap_future(read_lines(child.stdout, note_line))
            await exited(child)
        finally:
            kill_group(child)  # and its own children
        if child.returncode != 0:
            reason = reason.removeprefix("ERROR:").strip(" .")
            message = f"{reason}. The node's log has all that pip said."
            number = _ERRNO.search(reason)
            raise DependenciesFailed(message) from (number and OSError(int(number[1]), reason))


def allowed_environment(environment: Mapping[str, str], forbidden: str) -> dict[str, str]:
    """Returns the variables that handlers and pip may see: `forbidden` matches none of their names.

    Source: TorchServe 0.12 `EnvironmentUtils`, blacklist_env_vars.
    """
    pattern = re.compile(forbidden or r"\0")
    return {name: value for name, value in environment.items() if not pattern.fullmatch(name)}


def _python_in(folder: Path) -> Path:
    return folder / "bin" / "python"


def _is_ready(folder: Path) -> bool:
    return (folder / READY).exists() and _python_in(folder).exists()


def _make_empty(folder: Path) -> None:
    """Makes an environment that sees the packages of this one; replaces one left half made."""
    shutil.rmtree(folder, ignore_errors=True)
    # find_spec would import it: setuptools takes that for a sign that pip is running here.
    has_pip = any(importlib.metadata.distributions(name="pip"))
    venv.create(folder, system_site_packages=True, symlinks=True, with_pip=not has_pip)
    # An environment made from another one sees the packages of the Python behind both only.
    lines = [f"import site; site.addsitedir({packages!r})\n" for packages in site.getsitepackages()]
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (site_packages / _PTH).write_text("".join(lines), encoding="utf-8")


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Holds a lock between processes of this machine; the kernel frees it when its owner dies."""
    with path.open("a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_POLL_S)
        yield


# --- requirements.txt, as pip reads it. Source: pip 23.2 `_internal/req/req_file.py`


def read_requirements(model_dir: Path, file_name: str) -> str:
    """Returns the requirements for pip, one a line, without comments.

    Pip gets these lines and not the file: if it joined lines otherwise, it might find an option
    that was not checked here.

    Raises:
        DependenciesFailed: the file is missing, or says where pip shall look for packages.
    """
    path = model_dir / file_name
    is_inside = path.resolve().is_relative_to(model_dir.resolve())
    if not is_inside or not path.is_file() or path.stat().st_size > MAX_REQUIREMENTS_BYTES:
        raise DependenciesFailed(f"{file_name} is missing in the archive, or too large.")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DependenciesFailed(f"{file_name} is not UTF-8: {error}.") from error
    joined = "".join(_COMMENT.sub("", line) + "\n" for line in lines).replace("\\\n", "")
    requirements = [line.strip() for line in joined.split("\n") if line.strip()]
    for line in requirements:
        option = _OPTION.search(line)
        if line.endswith("\\") or (option and _QUOTES.search(line, option.start())):
            raise DependenciesFailed(
                f"{file_name} has quotes or backslashes among options, in {line!r}."
            )
        allowed = _HARMLESS_OPTIONS + (() if line.startswith("-") else _REQUIREMENT_OPTIONS)
        for flag in _OPTION.findall(line):
            name = flag.partition("=")[0] if flag.startswith("--") else flag[:2]
            if name not in allowed:
                raise DependenciesFailed(
                    f"{file_name} has the option {name}. Where packages come from is set on the "
                    "node (pip's configuration, PIP_INDEX_URL and the like); list all packages in "
                    "one file."
                )
    return "\n".join(requirements)


def environment_name(requirements: str, archive_sha256: str) -> str:
    """Returns the name of the environment for these requirements, under this Python.

    Models with the same requirements share one, unless they name files of their archives.
    """
    parts = [requirements, sys.version, sys.prefix]
    if _LOCAL_FILE.search(requirements):
        parts.append(archive_sha256)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
