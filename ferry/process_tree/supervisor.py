"""Keeps the processes of `ferry up` alive and stops them in order.

The ingresses stop first, because they drain their open requests and need workers for them; then the
node; Redis last, because both talk to it while they leave.
"""

import contextlib
import itertools
import json
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self

from batching.process.child_process import has_exited, kill_group
from batching.process.part import READY_LINE, StopSignals, ends_with_terminal
from batching.process.retries import Backoff

# A part that ran this long is healthy: its next failure starts the back-off over.
HEALTHY_AFTER_S = 30.0
_LONGEST_WAIT_S = 1.0


class Interrupted(Exception):
    """A signal asks to stop while the supervisor waits for something else."""


class StartFailed(Exception):
    """A part ended before everything was up."""

    def __init__(self, part_name: str, exit_code: int) -> None:
        super().__init__(f"{part_name} ended with exit code {exit_code} while starting")
        self.exit_code = exit_code


class ReadyPipe:
    """Reads from a child, which uses `batching.process.part`, that it is ready and what failed."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._received = b""
        self.is_closed = False

    def writer(self) -> tuple[int, ...]:
        """Returns the descriptor for the first child; later children get none."""
        return (self._write_fd,) if self._write_fd >= 0 else ()

    def hand_over(self) -> None:
        """Leaves the child as the only writer."""
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def close(self) -> None:
        self.hand_over()
        os.close(self.read_fd)

    def poll(self) -> bool:
        """Reads what is there, without blocking; returns whether the child has said `ready`."""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self.read_fd, 65536)
            # The child has ended, or has closed its end.
            self.is_closed = not chunk
            self._received += chunk
        return self._received.endswith(f"{READY_LINE}\n".encode())

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Returns the startup models that a child that is ready could not load."""
        return [json.loads(line) for line in self._received.splitlines()[:-1]]


@dataclass(slots=True)
class ProcessPart:
    """Starts one supervised process."""

    name: str
    launch: Callable[[], subprocess.Popen[bytes]]
    stop_share: float  # of the time for a clean stop
    group: str = ""  # such parts follow one another, stop together and share that time
    ready: ReadyPipe | None = None
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    restart_at_s: float | None = None

    def start(self) -> None:
        self.process = self.launch()
        self.started_s = time.monotonic()
        self.restart_at_s = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and not has_exited(self.process)

    def bury(self) -> int:
        """Kills the process with its group and reaps it; returns its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        kill_group(process)
        return process.returncode


class Supervisor:
    """Owns the parts from `start` to `stop`. Use as a context manager, in the main thread."""

    def __init__(
        self, parts: Sequence[ProcessPart], *, stop_timeout_s: float, report: Callable[[str], None]
    ) -> None:
        self.stop_reason = ""  # the signal
        self._parts = parts
        self._stop_timeout_s = stop_timeout_s
        self._report = report
        self._stop_signals = StopSignals()
        self._cleanup = contextlib.ExitStack()
        # A signal writes a byte into the socket, which wakes `poll`.
        self._wake_socket, self._wake_writer = socket.socketpair()

    def __enter__(self) -> Self:
        for end in (self._wake_socket, self._wake_writer):
            end.setblocking(False)
            self._cleanup.enter_context(end)
        fd = self._wake_writer.fileno()
        previous_fd = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        self._cleanup.callback(signal.set_wakeup_fd, previous_fd)
        # A handler that does nothing, so that the end of a child wakes `poll` as well.
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {
            signal.SIGCHLD: lambda *_: None,
            signal.SIGINT: self._on_stop,
            signal.SIGTERM: self._on_stop,
        }
        if ends_with_terminal():
            handlers[signal.SIGHUP] = self._on_stop
        for number, handler in handlers.items():
            self._cleanup.callback(signal.signal, number, signal.signal(number, handler))
        return self

    def __exit__(self, *_: object) -> None:
        for part in reversed(self._parts):
            part.bury()
            if part.ready is not None:
                part.ready.close()
        self._cleanup.close()

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_signals.is_new_request():
            self.stop_reason = self.stop_reason or signal.Signals(number).name

    def start(self, *parts: ProcessPart) -> None:
        for part in parts:
            part.start()

    def wait_until_ready(self, *parts: ProcessPart) -> None:
        """Waits until each part is ready; raises as `wait_until` does."""
        for ready in filter(None, (part.ready for part in parts)):
            self.wait_until(ready.poll, ready.read_fd)

    def wait_until(
        self, is_done: Callable[[], bool], *fds: int, timeout_s: float = math.inf
    ) -> None:
        """Waits until `is_done()`; asks it whenever one of `fds` can be read or a part ends.

        It raises Interrupted when a signal asks to stop, StartFailed when a part ended, and
        TimeoutError after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        while not is_done():
            self._wait(0.05, *fds)
            if self.stop_reason:
                raise Interrupted
            started = [part for part in self._parts if part.process is not None]
            for part in started:
                if not part.is_running:
                    raise StartFailed(part.name, part.bury())
            if time.monotonic() > deadline_s:
                names = ", ".join(part.name for part in started)
                raise TimeoutError(f"{names} not ready after {timeout_s:.0f} s")

    def run(self) -> None:
        """Starts dead parts again, until a signal asks to stop."""
        while not self.stop_reason:
            for part in self._parts:
                self._revive(part)
            due = [part.restart_at_s for part in self._parts if part.restart_at_s is not None]
            self._wait(min([_LONGEST_WAIT_S, *(at - time.monotonic() for at in due)]))

    def stop(self) -> None:
        """Stops the parts, the last group first, and reports each that had to be killed.

        Each group may take its share of the stop timeout, and what the groups before it have left
        over. A second signal kills all at once.
        """
        deadline_s = time.monotonic()
        in_reverse = reversed(self._parts)
        for _, group in itertools.groupby(in_reverse, lambda part: part.group or part.name):
            parts = list(group)
            deadline_s += parts[0].stop_share * self._stop_timeout_s
            for part in parts:
                if part.process is not None and part.is_running:
                    part.process.terminate()
            while (
                any(part.is_running for part in parts)
                and self._stop_signals.count <= 1
                and (left_s := deadline_s - time.monotonic()) > 0
            ):
                self._wait(left_s)
            for part in parts:
                if part.is_running:
                    self._report(f"{part.name} did not stop in time and was killed")
                part.bury()

    def _revive(self, part: ProcessPart) -> None:
        now_s = time.monotonic()
        if part.is_running or now_s < (part.restart_at_s or 0.0):
            return
        if part.restart_at_s is None:
            why = f"ended with exit code {part.bury()}"
            if now_s - part.started_s >= HEALTHY_AFTER_S:
                part.backoff.succeed()
        else:
            try:
                part.start()
                return
            except OSError as error:
                # It may have died for want of memory, which is still missing. The others serve on.
                why = f"cannot be started: {error.strerror}"
        part.backoff.fail(now_s)
        pause_s = part.backoff.delay_s
        part.restart_at_s = now_s + pause_s
        when = f"in {pause_s:.0f} s" if pause_s else "now"
        self._report(f"{part.name} {why}; starting it again {when}")

    def _wait(self, timeout_s: float, *fds: int) -> None:
        poller = select.poll()  # select.select() takes no descriptor above 1,023
        for fd in (self._wake_socket.fileno(), *fds):
            poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, timeout_s) * 1000)
        with contextlib.suppress(BlockingIOError):
            while self._wake_socket.recv(1024):
                pass
