"""Moments in which a core of this machine stood still: what a test measured then says nothing.

A hypervisor takes cores away for milliseconds, on a busy host many times a second. On each core a
process of its own sleeps for a millisecond, again and again, and reports each that took longer.

python -m tests.stalls CORE
"""

import os
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

BEAT_S = 0.001
STALL_S = 0.0015  # later than that
SPAN = struct.Struct("dd")
READ_BYTES = SPAN.size * 1024


class Stalls:
    """Watches while it is entered."""

    def __init__(self) -> None:
        self._watchers: list[subprocess.Popen[bytes]] = []
        self._spans: list[tuple[float, float]] = []
        self._pipes = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        for core in sorted(os.sched_getaffinity(0)):
            words = [sys.executable, "-m", "tests.stalls", str(core)]
            watcher = subprocess.Popen(words, stdout=subprocess.PIPE)
            self._watchers.append(watcher)
            assert watcher.stdout is not None
            watcher.stdout.read(1)  # it has begun
            self._pipes.register(watcher.stdout, selectors.EVENT_READ)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for watcher in self._watchers:
            watcher.kill()
            watcher.communicate()
        self._pipes.close()

    def hit(self, start_s: float, end_s: float) -> bool:
        """Returns whether a core is known to have stood still in this time (monotonic clock)."""
        self._spans += self._reports()
        self._spans = [span for span in self._spans if span[1] >= start_s]
        return any(began_s <= end_s for began_s, _ in self._spans)

    def _reports(self) -> Iterator[tuple[float, float]]:
        while ready := self._pipes.select(0):
            for key, _ in ready:
                yield from SPAN.iter_unpack(os.read(key.fd, READ_BYTES))


def watch(core: int) -> None:
    """Reports stalls to standard output, each as it ends."""
    os.sched_setaffinity(0, {core})
    os.write(1, b"!")
    while True:
        due_s = time.monotonic() + BEAT_S
        time.sleep(BEAT_S)
        now_s = time.monotonic()
        if now_s > due_s + STALL_S:
            os.write(1, SPAN.pack(due_s, now_s))


if __name__ == "__main__":
    watch(int(sys.argv[1]))
