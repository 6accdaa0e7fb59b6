"""Child processes of which nothing is left at the end, and what they are started with."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.measuring.records import ROOT, BenchmarkError

STOP_TIMEOUT_S = 15.0
LOG_TAIL_CHARS = 3000
# Below those that Linux gives to outgoing connections: one of these, made between the choice of a
# port and its use, would take it.
LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000


def run_module(module: str, *words: object, environment: Mapping[str, str] = os.environ) -> str:
    """Runs `benchmarks.<module>`, with handlers' `ts` on its path; returns its last line.

    Raises:
        BenchmarkError: it failed.
    """
    run = subprocess.run(
        [sys.executable, "-P", "-m", f"benchmarks.{module}", *map(str, words)],
        env={**environment, "PYTHONPATH": f"{ROOT / 'compat'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise BenchmarkError(f"benchmarks.{module} failed:\n{run.stderr[-LOG_TAIL_CHARS:]}")
    return run.stdout.splitlines()[-1] if run.stdout else ""


def ferry_command() -> str:
    ferry = Path(sys.executable).with_name("ferry")
    if not ferry.exists():
        raise BenchmarkError(f"no ferry command beside {sys.executable}: pip install -e .")
    return str(ferry)


def inherited_environment() -> dict[str, str]:
    """Returns this process's environment without what would configure a server."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "REDIS_URL" and not name.startswith(("FERRY_", "TS_"))
    }


def local(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def free_ports(count: int) -> list[int]:
    """Returns ports of the loopback interface that are free now."""
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            port = LOWEST_PORT + secrets.randbelow(HIGHEST_PORT - LOWEST_PORT)
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def write_archive(archive: Path, model: Mapping[str, str], *files: Path) -> None:
    """Writes an archive with these files and a manifest that says this of the model.

    Nothing is deflated: random weights take long and save little.
    """
    described = {"modelName": archive.stem, "modelVersion": "1.0", **model}
    manifest = {"runtime": "python", "model": described, "archiverVersion": "0.12.0"}
    with zipfile.ZipFile(archive, "w") as entries:
        entries.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest, indent=2))
        for file in files:
            entries.write(file, file.name)


class Child:
    """A command that runs between `start` and `stop`.

    Its own session keeps the terminal's Ctrl-C from it: it ends when `stop` says so, in order.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._command, self._environment, self._folder = command, environment, folder
        self._log = folder / "server.log"
        self._process: psutil.Popen | None = None

    def start(self) -> None:
        """Starts the process in its folder, with exactly this environment."""
        with self._log.open("wb") as log:
            self._process = psutil.Popen(
                self._command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        """Returns the end of what it printed."""
        return self._log.read_text(errors="replace")[-LOG_TAIL_CHARS:] if self._log.exists() else ""

    def stop(self, *, whole_group: bool = False) -> None:
        """Stops all processes: SIGTERM first, to the first process or to the whole group.

        Blocks up to STOP_TIMEOUT_S; what is left then is killed, as it is when the wait is
        interrupted (a second Ctrl-C).
        """
        if self._process is None:
            return
        family = [self._process]
        # Asked while the parents live: a process with a session of its own, or one that its dead
        # parent left to init, can no longer be told from a stranger's.
        with contextlib.suppress(psutil.NoSuchProcess):
            family += self._process.children(recursive=True)
        try:
            self._signal(signal.SIGTERM, whole_group=whole_group)
            psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
        finally:
            self._signal(signal.SIGKILL, whole_group=True)
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            self._process.wait()
            self._process = None

    def _signal(self, number: signal.Signals, *, whole_group: bool) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if whole_group:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
