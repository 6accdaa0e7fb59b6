"""Installs the requirements of models, each into a virtual environment of its own.

    work_dir/environments/<hash>        the environment; its file `ready` is written last
    work_dir/environments/<hash>.lock   held by the node that makes it

An environment sees the packages of this one, torch above all, and adds to them. Models with the
same requirements share one, also over nodes of one machine; it is kept for a while, for the next
registration.
"""

import asyncio
import contextlib
import errno
import fcntl
import importlib.metadata
import logging
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import time
import venv
import weakref
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

from batching.errors import DependenciesFailed
from batching.models.spec import INSTALL_TIMEOUT_S, ModelSpec
from batching.process.child_process import exited, kill_group, spawn
from batching.process.daemon_thread import in_daemon_thread
from workers.archives.requirements import environment_name, read_requirements
from workers.archives.staging import ABANDONED_AFTER_S, mark_used, remove_unused
from workers.machine.allowed_environment import allowed_environment

log = logging.getLogger(__name__)

FOLDER = "environments"
READY = "ready"
REQUIREMENTS = "requirements.txt"
LOCK_POLL_S = 0.2
MAX_LINE_BYTES = 1024**2
# The workers of a model do not each wait for pip to fail.
FAILURE_LASTS_S = 30.0
# What pip says of a disk without room. Source: pip 23.2 `create_os_error_message`.
_NO_ROOM = {f"[Errno {number}]": number for number in (errno.ENOSPC, errno.EDQUOT)}
_PTH = "shared_with_the_server.pth"


class Installer:
    """The environments of one node."""

    def __init__(
        self,
        work_dir: Path,
        *,
        is_allowed: bool,
        forbidden_variables: str = "",
        timeout_s: float = INSTALL_TIMEOUT_S,
    ) -> None:
        self._folder = work_dir / FOLDER
        self._is_allowed = is_allowed
        # Build scripts are not to find the server's own modules.
        self._forbidden = f"PYTHONPATH|{forbidden_variables}"
        self._timeout_s = timeout_s
        # Weak: a lock lives for as long as a task holds it or waits for it.
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        # Name of an environment that could not be made -> when, and the error.
        self._failures: dict[str, tuple[float, DependenciesFailed]] = {}

    async def python_for(self, spec: ModelSpec, model_dir: Path) -> Path:
        """Installs the model's requirements and returns the interpreter that has them.

        Belongs to the main thread.

        Raises:
            DependenciesFailed: pip says no, the time is up, or the disk fails, which is its cause
                then; the log has pip's own words.
        """
        file_name = spec.requirements_file
        if not file_name:
            return Path(sys.executable)
        if not self._is_allowed:
            log.warning(
                "model=%s version=%s: %s is not installed, install_py_dep_per_model is off",
                *spec.key,
                file_name,
            )
            return Path(sys.executable)
        try:
            text = read_requirements(model_dir, file_name)
            name = environment_name(text, spec.archive_sha256)
            lock = self._locks.setdefault(name, asyncio.Lock())
            async with lock:
                return await self._prepared(spec, name, text, (model_dir / file_name).parent)
        except DependenciesFailed as error:
            raise DependenciesFailed(
                f"Custom pip package installation failed for model {spec.model_name}: "
                f"{error.message}"
            ) from error.__cause__
        except OSError as error:
            raise DependenciesFailed(
                f"Virtual environment creation failed for model {spec.model_name}: {error.strerror}"
            ) from error

    def mark_used(self, spec: ModelSpec, model_dir: Path) -> None:
        file_name = spec.requirements_file
        if not file_name or not self._is_allowed:
            return
        with contextlib.suppress(DependenciesFailed, OSError):
            text = read_requirements(model_dir, file_name)
            mark_used(self._folder / environment_name(text, spec.archive_sha256))

    def remove_unused(self, *, older_than_s: float) -> None:
        """Removes the environments that were not marked for so long; pip works on none of them."""
        older_than_s = max(older_than_s, ABANDONED_AFTER_S)
        remove_unused(self._folder, self._folder.parent, older_than_s=older_than_s)

    async def _prepared(self, spec: ModelSpec, name: str, text: str, cwd: Path) -> Path:
        place = self._folder / name
        python = _python_in(place)
        if _is_ready(place) and mark_used(place):
            return python
        failed_s, failure = self._failures.get(name, (0.0, None))
        if failure is not None and time.monotonic() - failed_s < FAILURE_LASTS_S:
            raise DependenciesFailed(failure.message) from failure.__cause__
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            async with asyncio.timeout(self._timeout_s), _locked(place.with_suffix(".lock")):
                if not _is_ready(place):  # otherwise another node made it meanwhile
                    log.info("installing model=%s version=%s into=%s", *spec.key, place)
                    await in_daemon_thread(partial(_make, place))
                    # With a BOM, or pip would take it to be in the locale's encoding.
                    place.joinpath(REQUIREMENTS).write_text(text, encoding="utf-8-sig")
                    await self._install(spec, python, place / REQUIREMENTS, cwd)
                    (place / READY).touch()
                    log.info("installed model=%s version=%s", *spec.key)
        except TimeoutError:
            failure = DependenciesFailed(f"not done within {self._timeout_s:.0f} s.")
            self._failures[name] = time.monotonic(), failure
            raise failure from None
        except DependenciesFailed as error:
            self._failures[name] = time.monotonic(), error
            raise
        return python

    async def _install(self, spec: ModelSpec, python: Path, requirements: Path, cwd: Path) -> None:
        argv = [
            # -P: a tokenize.py of the model must not run instead of Python's.
            *(str(python), "-P", "-m", "pip", "install"),
            *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-color"),
            *("--requirement", str(requirements)),
        ]
        reason = ""
        environment = allowed_environment(os.environ, self._forbidden)
        async with _output(argv, environment, cwd) as (child, lines):
            async for line in lines:
                log.info("pip model=%s: %s", spec.model_name, line)
                # The last error, else the last line: behind "Exception:" the end of a traceback.
                is_error = line.startswith("ERROR:") and line != "ERROR: Exception:"
                if is_error or not reason.startswith("ERROR:"):
                    reason = line
            await exited(child)
        if child.returncode != 0:
            reason = reason.removeprefix("ERROR:").strip(" .")
            text = f"{reason}. The node's log has all that pip said."
            raise DependenciesFailed(text) from _no_room(reason)


def _no_room(reason: str) -> OSError | None:
    """Returns the error of a full disk, if pip has met one."""
    found = (number for words, number in _NO_ROOM.items() if words in reason)
    return next((OSError(number, os.strerror(number)) for number in found), None)


@contextlib.asynccontextmanager
async def _output(
    argv: list[str], environment: Mapping[str, str], cwd: Path
) -> AsyncIterator[tuple["subprocess.Popen[bytes]", AsyncIterator[str]]]:
    """Yields a running child and its lines; kills it afterwards, with its own children."""
    reader_fd, writer_fd = os.pipe()
    try:
        child = spawn(argv, environment, stdout=writer_fd, stderr=writer_fd, cwd=cwd)
    except BaseException:
        os.close(reader_fd)
        raise
    finally:
        os.close(writer_fd)
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reader_fd, "rb")
    )
    try:
        yield child, _lines(reader)
    finally:
        kill_group(child)
        transport.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # longer than any that pip writes
            continue
        if not line:
            return
        text = line.decode(errors="replace").strip()
        if text:
            yield "".join(char if char.isprintable() else "?" for char in text)


def _make(place: Path) -> None:
    """Makes an environment that sees the packages of this one, in place of one left half made."""
    shutil.rmtree(place, ignore_errors=True)
    # Not by find_spec: setuptools takes that for a sign that pip is running here.
    has_pip = any(importlib.metadata.distributions(name="pip"))
    try:
        venv.create(place, system_site_packages=True, symlinks=True, with_pip=not has_pip)
    except subprocess.CalledProcessError as error:
        said = error.output.decode(errors="replace").strip().rpartition("\n")[2]
        text = f"the node's Python has no pip, and none can be had from ensurepip: {said}"
        raise DependenciesFailed(text) from _no_room(said)
    # An environment made from another one sees the packages of the Python behind both only.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]
    _site_packages(place).joinpath(_PTH).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _is_ready(place: Path) -> bool:
    return (place / READY).exists() and _python_in(place).exists()


def _python_in(place: Path) -> Path:
    return place / "bin" / "python"


def _site_packages(place: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(place)}))


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
