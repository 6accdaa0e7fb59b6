"""Keeps standard output and error from holding up or ending the work of our processes.

A disk may be full, a reader may have gone, or not read. What an output does not take is dropped and
counted. The output of children is read all the time, and passed on line by line.
"""

import atexit
import contextlib
import functools
import io
import logging
import os
import re
import select
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import IO, Any, cast

log = logging.getLogger(__name__)

# What may wait for an output, and for how long a child's line waits for room there.
_MOST_BYTES = 2**20
_PATIENCE_S = 0.2
# For a process's last lines.
_END_S = 0.5
_CHUNK_BYTES = 64 * 1024
# Lines that come one by one are read and written together: a thread costs most where it wakes.
_GATHER_S = 0.002
# Longer lines are cut; those that have not ended are passed on after a while.
MOST_LINE_BYTES = 32 * 1024
UNFINISHED_S = 1.0
_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_REST_OF_END = re.compile(rb"\n")

_outlets: dict[int, "Outlet"] = {}


def free_outputs() -> None:
    """Replaces `sys.stdout` and `sys.stderr` by streams that neither wait nor fail."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        with contextlib.suppress(AttributeError, OSError):  # there is none, or it is a test's
            if old.fileno() == fd and not isinstance(old.buffer, Outlet):
                errors, buffer = "backslashreplace", cast(IO[bytes], outlet(fd))
                new = io.TextIOWrapper(buffer, old.encoding, errors, line_buffering=True)
                setattr(sys, name, new)


def outlet(fd: int) -> "Outlet":
    if fd not in _outlets:
        _outlets[fd] = Outlet(fd)
        atexit.register(_outlets[fd].drain)
    return _outlets[fd]


def dropped_lines() -> int:
    return sum(one.dropped for one in _outlets.values())


class Outlet(io.RawIOBase):
    """Writes to a descriptor from a thread of its own; `dropped` counts the lines that are lost."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.dropped = 0
        self._reported = 0
        self._fd = fd
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_stuck = self._is_cut = False
        # Its holder may take the lock once more: a signal handler may log.
        self._changed = threading.Condition()
        threading.Thread(target=self._empty, name=f"output {fd}", daemon=True).start()

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Takes the text, or drops it if there is no room. Never blocks or raises."""
        return self._put(bytes(data), 0.0)

    def write_line(self, line: bytes) -> None:
        """Takes a line, for whose room it waits a moment, but not time and again."""
        self._put(line + b"\n", _PATIENCE_S)

    def drain(self) -> None:
        """Waits until all is written; not for an output that takes nothing."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, _END_S)

    def _put(self, piece: bytes, patience_s: float) -> int:
        most = _MOST_BYTES - len(piece)
        with self._changed:
            if self._size > most and patience_s and not self._is_stuck:
                # Until all of it has been written, nobody waits any more.
                has_come = self._changed.wait_for(lambda: self._size <= most, patience_s)
                self._is_stuck = not has_come
            if self._size > most:
                self.dropped += _lines_in(piece)
            elif piece:
                self._size += len(piece)
                self._pieces.append(piece)
                self._changed.notify_all()
        return len(piece)

    def _empty(self) -> None:
        while True:
            if not self._pieces:
                with self._changed:
                    self._changed.wait_for(lambda: self._pieces)
                time.sleep(_GATHER_S)
            with self._changed:
                piece = self._pieces.popleft()
                # Other processes write to the same pipe, and what is longer may be torn there.
                while self._pieces and len(piece) + len(self._pieces[0]) <= select.PIPE_BUF:
                    piece += self._pieces.popleft()
            self._write(piece)
            with self._changed:
                self._size -= len(piece)
                self._is_stuck = self._is_stuck and self._size > 0
                self._changed.notify_all()

    def _write(self, piece: bytes) -> None:
        rest = b"\n" + piece if self._is_cut else piece
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # made so by another process that has it, too
                    poller = select.poll()
                    poller.register(self._fd, select.POLLOUT)
                    poller.poll()
        except OSError:
            self._is_cut = self._is_cut or len(rest) < len(piece)
            with self._changed:
                self.dropped += _lines_in(rest[-len(piece) :])
            return
        self._is_cut = False
        if count := self.dropped - self._reported:
            self._reported += count
            log.warning("output dropped lines=%d fd=%d", count, self._fd)


def _lines_in(piece: bytes) -> int:
    return max(1, piece.count(b"\n"))


def read_lines(stream: IO[bytes], take: Callable[[bytes], object]) -> "Future[None]":
    r"""Calls `take` with each line of a pipe, in a thread that all pipes share.

    A line ends with \n, \r\n or \r, which `take` does not get. The future is done when the pipe has
    ended, which is closed then.
    """
    return reader().add(stream, take)


@functools.cache
def reader() -> "_Reader":
    """Returns what `read_lines` reads with; its thread is started by the first call."""
    return _Reader()


class _Reader:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        threading.Thread(target=self._read, name="output of children", daemon=True).start()

    def add(self, stream: IO[bytes], take: Callable[[bytes], object]) -> "Future[None]":
        lines = _Lines(take)
        self._selector.register(stream, selectors.EVENT_READ, lines)
        return lines.ended

    def _read(self) -> None:
        unfinished: set[_Lines] = set()
        while True:
            time.sleep(_GATHER_S)
            for key, _ in self._selector.select(UNFINISHED_S if unfinished else None):
                if chunk := os.read(key.fd, _CHUNK_BYTES):
                    key.data.add(chunk)
                    unfinished.add(key.data)
                else:
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    key.data.end()
            now_s = time.monotonic()
            unfinished = {lines for lines in unfinished if not lines.is_whole(now_s)}


class _Lines:
    """Cuts the bytes of one pipe into lines."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take
        self._rest = bytearray()
        self._since_s = 0.0
        # The end of a line that is passed on already.
        self._late_end: re.Pattern[bytes] | None = None
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # nobody can cancel it

    def add(self, chunk: bytes) -> None:
        if self._late_end is not None and (end := self._late_end.match(chunk)):
            chunk = chunk[end.end() :]
        self._late_end = _REST_OF_END if chunk.endswith(b"\r") else None
        *whole, rest = _END_OF_LINE.split(chunk)
        for line in whole:
            self._pass_on(self._rest + line)
            self._rest.clear()
        if not self._rest:
            self._since_s = time.monotonic()
        self._rest += rest
        if len(self._rest) > MOST_LINE_BYTES:
            self._pass_on_rest()

    def end(self) -> None:
        self._pass_on_rest()
        self.ended.set_result(None)

    def is_whole(self, now_s: float) -> bool:
        """Returns whether nothing waits for its end; passes on what has waited for too long."""
        if now_s - self._since_s >= UNFINISHED_S:
            self._pass_on_rest()
        return not self._rest

    def _pass_on_rest(self) -> None:
        if self._rest:
            self._pass_on(self._rest)
            self._rest.clear()
            self._late_end = _END_OF_LINE

    def _pass_on(self, line: bytes | bytearray) -> None:
        for begin in range(0, max(1, len(line)), MOST_LINE_BYTES):
            self._take(bytes(line[begin : begin + MOST_LINE_BYTES]))
