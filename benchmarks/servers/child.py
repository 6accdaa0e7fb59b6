"""Child processes: a server of which nothing is left at the end, and a module of this folder."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.measuring.load import BenchmarkError
from benchmarks.measuring.records import ROOT

STOP_TIMEOUT_S = 15.0
LOG_TAIL_CHARS = 3000


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


class Child:
    """A command that runs between `start` and `stop`.

    Its own session keeps the terminal's Ctrl-C from it: it ends when `stop` says so, in order.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._command = command
        self._environment = environment
        self._folder = folder
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process in its folder, with exactly this environment."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
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
        """Returns the first process.

        Raises:
            RuntimeError: it was not started, or has been stopped.
        """
        if self._process is None:
            raise RuntimeError("not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Returns whether the first process still runs."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        """Returns the end of what it printed."""
        return self._log.read_text(errors="replace")[-LOG_TAIL_CHARS:] if self._log.exists() else ""

    def stop(self, *, whole_group: bool) -> None:
        """Stops all processes: SIGTERM first, to the first process or to the whole group.

        Blocks up to STOP_TIMEOUT_S; what is left then is killed, as it is when the wait is
        interrupted (a second Ctrl-C).
        """
        if self._process is None:
            return
        family = self._descendants(self._process.pid)
        try:
            if whole_group:
                self._signal_group(signal.SIGTERM)
            elif self.is_running:
                self._process.terminate()
            self._wait_for(family)
        finally:
            self._signal_group(signal.SIGKILL)
            for member in family:
                self._kill(member)
            self._process.wait()
            self._process = None

    def _wait_for(self, family: Sequence[psutil.Process]) -> None:
        give_up_at = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < give_up_at:
            if not self.is_running and not any(member.is_running() for member in family):
                return
            time.sleep(0.05)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    @staticmethod
    def _descendants(pid: int) -> list[psutil.Process]:
        # Asked while the parents live: a process with a session of its own, or one that its dead
        # parent left to init, can no longer be told from a stranger's.
        try:
            return psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    @staticmethod
    def _kill(member: psutil.Process) -> None:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            return
