"""Keeps the processes of `ferry up` alive and stops them in order.

They are started in the order given and stopped in the reverse one: the ingresses first, because
they drain their open requests and need workers for them; then the node; Redis last, because both
talk to it while they leave. One thread: signals and the ends of children wake one `poll`.
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

# A part that ran this long is healthy: its next failure starts the back-off afresh.
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
    """Hears from a child, by `batching.process.part`, that it is ready and what failed."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._pending = b""
        self.is_ready = False
        self.is_closed = False
        # The startup models that could not be loaded.
        self.failures: list[dict[str, Any]] = []

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
        try:
            chunk = os.read(self.read_fd, 65536)
        except BlockingIOError:
            return self.is_ready
        # The child has ended, or has closed its end.
        self.is_closed = not chunk
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            if line == READY_LINE.encode():
                self.is_ready = True
            elif line:
                self.failures.append(json.loads(line))
        return self.is_ready


@dataclass(slots=True)
class Part:
    """One supervised process. `stop_share` is its part of the time for a clean stop.

    Parts of one `group` follow one another, stop together and share that time.
    """

    name: str
    launch: Callable[[], subprocess.Popen[bytes]]
    stop_share: float
    group: str = ""
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
        # A signal writes a byte into the socket, which wakes `poll`.
        self._wake_socket, writer = socket.socketpair()
        for end in (self._wake_socket, writer):
            end.setblocking(False)
            self._cleanup.enter_context(end)
        previous_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._cleanup.callback(signal.set_wakeup_fd, previous_fd)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is not signal.SIGHUP or ends_with_terminal():
                self._handle(number, self._record)
        # A handler that does nothing, so that the end of a child wakes `poll` as well.
        self._handle(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for part in reversed(self._parts):
            part.bury()
            if part.ready is not None:
                part.ready.close()
        self._cleanup.close()

    def _handle(
        self, number: signal.Signals, handler: Callable[[int, FrameType | None], object]
    ) -> None:
        self._cleanup.callback(signal.signal, number, signal.signal(number, handler))

    def start(self, *parts: Part) -> None:
        for part in parts:
            part.start()

    def wait_until_ready(self, *parts: Part) -> None:
        """Waits until each part has said that it is; raises what `wait_until` does."""
        for ready in filter(None, (part.ready for part in parts)):
            self.wait_until(ready.poll, ready.read_fd)

    def wait_until(
        self, is_done: Callable[[], bool], *fds: int, timeout_s: float = math.inf
    ) -> None:
        """Waits until `is_done()`, which is asked whenever one of `fds` can be read or a part ends.

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
                if part.process is not None and not part.is_running:
                    raise StartFailed(part.name, part.bury())
            if time.monotonic() > deadline:
                started = ", ".join(part.name for part in self._parts if part.process is not None)
                raise TimeoutError(f"{started} not ready after {timeout_s:.0f} s")

    def run(self) -> None:
        """Starts dead parts again, until a signal asks to stop."""
        while not self._signals:
            for part in self._parts:
                self._revive(part)
            due = [part.restart_at_s for part in self._parts if part.restart_at_s is not None]
            self._wait(min([_LONGEST_WAIT_S, *(at - time.monotonic() for at in due)]))

    def stop(self) -> None:
        """Stops the parts, the last group first, and reports each that had to be killed.

        Each group may take its share of the stop timeout, and the time that those before it have
        left over. A second signal kills all at once.
        """
        deadline = time.monotonic()
        in_reverse = reversed(self._parts)
        for _, group in itertools.groupby(in_reverse, lambda part: part.group or part.name):
            parts = list(group)
            deadline += parts[0].stop_share * self._stop_timeout_s
            for part in parts:
                if part.process is not None and part.is_running:
                    part.process.terminate()
            self._wait_for_end(parts, deadline)
            for part in parts:
                if part.is_running:
                    self._report(f"{part.name} did not stop in time and was killed")
                part.bury()

    def _wait_for_end(self, parts: Sequence[Part], deadline_s: float) -> None:
        while any(part.is_running for part in parts) and len(self._signals) <= 1:
            if (left_s := deadline_s - time.monotonic()) <= 0:
                return
            self._wait(left_s)

    def _revive(self, part: Part) -> None:
        now = time.monotonic()
        if part.restart_at_s is None:
            if part.is_running:
                return
            exit_code = part.bury()
            if now - part.started_s >= HEALTHY_AFTER_S:
                part.backoff.succeed()
            self._put_off(part, now, f"ended with exit code {exit_code}")
        elif now >= part.restart_at_s:
            try:
                part.start()
            except OSError as error:
                # It may have died for want of memory, which is still missing. The others serve on.
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
        if self._stop_signals.is_new_request():
            self._signals.append(number)

    @property
    def stop_reason(self) -> str:
        return signal.Signals(self._signals[0]).name if self._signals else ""
