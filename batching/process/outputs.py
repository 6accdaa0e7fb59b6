"""Keeps standard output and error from holding up or ending the work of our processes.

A disk may be full; a reader may have gone, or not read. What an output does not take is dropped and
counted.
"""

import atexit
import contextlib
import functools
import io
import logging
import os
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
# Lines that come one by one are read and written together, as waking a thread costs most.
_GATHER_S = 0.002
MOST_LINE_BYTES = 32 * 1024  # longer lines are cut

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
    return sum(it.dropped for it in _outlets.values())


class Outlet(io.RawIOBase):
    """Writes to a descriptor from a thread of its own; `dropped` counts lost lines."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.dropped = self._reported = 0
        self._fd = fd
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_stuck = False
        # Reentrant, because a signal handler may log.
        self._changed = threading.Condition()
        threading.Thread(target=self._empty, name=f"output {fd}", daemon=True).start()

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, patience_s: float = 0.0) -> int:
        """Takes the text, or drops it if no room comes in time. Never raises."""
        piece = bytes(data)
        most = _MOST_BYTES - len(piece)
        with self._changed:
            if self._size > most and patience_s and not self._is_stuck:
                # After one wait in vain, nobody waits until all of it has been written.
                has_come = self._changed.wait_for(lambda: self._size <= most, patience_s)
                self._is_stuck = not has_come
            if self._size > most:
                self.dropped += _lines_in(piece)
            elif piece:
                self._size += len(piece)
                self._pieces.append(piece)
                self._changed.notify_all()
        return len(piece)

    def write_line(self, line: bytes) -> None:
        """Takes a line; without room, waits up to _PATIENCE_S, unless one just waited in vain."""
        self.write(line + b"\n", _PATIENCE_S)

    def drain(self) -> None:
        """Waits up to _END_S until all is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, _END_S)

    def _empty(self) -> None:
        while True:
            if not self._pieces:
                with self._changed:
                    self._changed.wait_for(lambda: self._pieces)
                time.sleep(_GATHER_S)
            with self._changed:
                piece = self._pieces.popleft()
                # Other processes write to the same pipe, where longer writes may be torn.
                while self._pieces and len(piece) + len(self._pieces[0]) <= select.PIPE_BUF:
                    piece += self._pieces.popleft()
            lost = self._lost_of(piece)
            with self._changed:
                self.dropped += lost
                self._size -= len(piece)
                self._is_stuck = self._is_stuck and self._size > 0
                self._changed.notify_all()
            if not lost and self.dropped > self._reported:
                count, self._reported = self.dropped - self._reported, self.dropped
                log.warning("output dropped lines=%d fd=%d", count, self._fd)

    def _lost_of(self, piece: bytes) -> int:
        """Writes the piece; returns how many of its lines the output has not taken."""
        while piece:
            try:
                piece = piece[os.write(self._fd, piece) :]
            except BlockingIOError:  # another process has made it non-blocking
                poller = select.poll()
                poller.register(self._fd, select.POLLOUT)
                poller.poll()
            except OSError:
                return _lines_in(piece)
        return 0


def _lines_in(piece: bytes) -> int:
    return max(1, piece.count(b"\n"))


def read_lines(stream: IO[bytes], take: Callable[[bytes], object]) -> "Future[None]":
    r"""Calls `take` with each line of a pipe, in a thread that all pipes share.

    A line ends with \n, \r\n or \r, which `take` does not get. When the pipe has ended, it is
    closed, and the future is done.
    """
    ended: Future[None] = Future()
    ended.set_running_or_notify_cancel()  # nobody can cancel it
    newlines, rest = io.IncrementalNewlineDecoder(None, translate=True), ""

    def add(chunk: bytes) -> None:
        nonlocal rest
        # Latin-1 has a character for each byte.
        text = newlines.decode(chunk.decode("latin-1"), final=not chunk)
        *lines, rest = (rest + text).split("\n")
        if rest and (not chunk or len(rest) > MOST_LINE_BYTES):
            lines.append(rest)
            rest = ""
        for line in lines:
            for begin in range(0, max(1, len(line)), MOST_LINE_BYTES):
                take(line[begin : begin + MOST_LINE_BYTES].encode("latin-1"))
        if not chunk:
            ended.set_result(None)

    reader().register(stream, selectors.EVENT_READ, add)
    return ended


@functools.cache
def reader() -> selectors.BaseSelector:
    """Returns the pipes of `read_lines`; the first call starts the thread that reads them."""
    pipes = selectors.DefaultSelector()

    def read() -> None:
        while True:
            time.sleep(_GATHER_S)
            for key, _ in pipes.select():
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    pipes.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                key.data(chunk)

    threading.Thread(target=read, name="output of children", daemon=True).start()
    return pipes
