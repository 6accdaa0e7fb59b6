"""Keeps the processes of `ferry up` alive and stops them in order.

Started in the order given, stopped in the reverse one: the ingress first, because it drains what is
in flight and needs workers for it; then the node; Redis last, because both talk to it while they
leave. One thread: signals and the ends of children wake one `poll`.
"""

import contextlib
import math
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Self

from batching.process.backoff import Backoff
from batching.process.child_process import has_exited, kill_group
from batching.process.stop_signals import StopSignals, ends_with_terminal

# A part that ran this long is healthy: its next failure starts the back-off afresh.
HEALTHY_AFTER_S = 30.0
_LONGEST_WAIT_S = 1.0


class Interrupted(Exception):
    """A signal asks to stop while something is being waited for."""


class StartFailed(Exception):
    """A part ended before everything was up."""

    def __init__(self, part_name: str, exit_code: int) -> None:
        super().__init__(f"{part_name} ended with exit code {exit_code} while starting")
        self.exit_code = exit_code


@dataclass(slots=True)
class Part:
    """One supervised process. `stop_share` is its part of the time for a clean stop."""

    name: str
    launch: Callable[[], subprocess.Popen[bytes]]
    stop_share: float
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    restart_at_s: float | None = None

    def start(self) -> None:
        """Starts the process."""
        self.process = self.launch()
        self.started_s = time.monotonic()
        self.restart_at_s = None

    @property
    def is_running(self) -> bool:
        """Returns whether the process was started and has not ended."""
        return self.process is not None and not has_exited(self.process)

    def bury(self) -> int:
        """Reaps the dead process and kills its group; returns its exit code."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        kill_group(process)
        return process.returncode


class Supervisor:
    """Owns the parts from `start` to `stop`. Use as a context manager, in the main thread."""

    def __init__(
        self, parts: Sequence[Part], *, stop_timeout_s: float, report: Callable[[str], None]
    ) -> None:
        self._parts = parts
        self._stop_timeout_s = stop_timeout_s
        self._report = report
        self._signals: list[int] = []
        self._stop_signals = StopSignals()
        self._cleanup = contextlib.ExitStack()
        self._wake_socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._wake_socket = self._cleanup.enter_context(_signals_wake())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is not signal.SIGHUP or ends_with_terminal():
                self._cleanup.enter_context(_handled(number, self._record))
        # Python's no-op handler, so that the end of a child wakes the select as well.
        self._cleanup.enter_context(_handled(signal.SIGCHLD, lambda *_: None))
        return self

    def __exit__(self, *_: object) -> None:
        for part in reversed(self._parts):
            part.bury()
        self._cleanup.close()

    def start(self, *names: str) -> None:
        """Launches the parts of these names, in the supervisor's order."""
        for part in self._parts:
            if part.name in names:
                part.start()

    def wait_until(
        self, is_done: Callable[[], bool], *fds: int, timeout_s: float = math.inf
    ) -> None:
        """`is_done()` is true; it is asked whenever one of `fds` can be read or something ends.

        Raises:
            Interrupted: a signal asks to stop.
            StartFailed: a part ended.
            TimeoutError: it took longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not is_done():
            self._wait(0.05, *fds)
            if self._signals:
                raise Interrupted
            for part in self._parts:
                if part.process is not None and has_exited(part.process):
                    raise StartFailed(part.name, part.bury())
            if time.monotonic() > deadline:
                started = ", ".join(part.name for part in self._parts if part.process is not None)
                raise TimeoutError(f"{started} not ready after {timeout_s:.0f} s")

    def run(self) -> None:
        """Returns when a signal asks to stop; until then, dead parts are started again."""
        while not self._signals:
            for part in self._parts:
                self._revive(part)
            due = [part.restart_at_s for part in self._parts if part.restart_at_s is not None]
            self._wait(min([_LONGEST_WAIT_S, *(at - time.monotonic() for at in due)]))

    def stop(self) -> None:
        """Every part is gone, last started first; it is reported when one had to be killed.

        Each part may take its share of the stop timeout plus what those before it left over. A
        second signal kills all at once.
        """
        deadline = time.monotonic()
        for part in reversed(self._parts):
            deadline += part.stop_share * self._stop_timeout_s
            if part.process is not None and not has_exited(part.process):
                part.process.terminate()
            while part.is_running and time.monotonic() < deadline and len(self._signals) <= 1:
                self._wait(deadline - time.monotonic())
            if part.is_running:
                self._report(f"{part.name} did not stop in time and was killed")
            part.bury()

    def _revive(self, part: Part) -> None:
        now = time.monotonic()
        if part.restart_at_s is not None:
            if now >= part.restart_at_s:
                self._start_again(part, now)
            return
        if part.is_running:
            return
        exit_code = part.bury()
        if now - part.started_s >= HEALTHY_AFTER_S:
            part.backoff.succeed()
        self._put_off(part, now, f"ended with exit code {exit_code}")

    def _start_again(self, part: Part, now: float) -> None:
        try:
            part.start()
        except OSError as error:
            # What it died for want of, memory perhaps, may still be missing. The others serve on.
            self._put_off(part, now, f"cannot be started: {error.strerror}")

    def _put_off(self, part: Part, now: float, why: str) -> None:
        part.backoff.fail(now)
        pause_s = part.backoff.delay_s
        part.restart_at_s = now + pause_s
        when = f"in {pause_s:.0f} s" if pause_s else "now"
        self._report(f"{part.name} {why}; starting it again {when}")

    def _wait(self, timeout_s: float, *fds: int) -> None:
        assert self._wake_socket is not None
        poller = select.poll()  # select.select() takes no descriptor above 1,023
        for fd in (self._wake_socket.fileno(), *fds):
            poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, timeout_s) * 1000)
        with contextlib.suppress(BlockingIOError):
            while self._wake_socket.recv(1024):
                pass

    def _record(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_signals.is_new_wish():
            self._signals.append(number)

    @property
    def stop_reason(self) -> str:
        """Returns the name of the signal that asks to stop."""
        return signal.Signals(self._signals[0]).name if self._signals else ""


@contextlib.contextmanager
def _signals_wake() -> Iterator[socket.socket]:
    """Yields a socket that can be read as soon as this process gets a signal."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(previous)


@contextlib.contextmanager
def _handled(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    previous = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, previous)
