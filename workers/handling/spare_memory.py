"""Gives back memory that a rare batch has taken; keeps what most batches need, for their speed."""

import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

LOOK_S = 3.0
# Memory beyond what batches were seen to need is given back at the next look. The rest is tried at
# growing intervals: to fetch an ordinary batch's memory again costs up to a tenth of its run.
MOST_PAUSE_S = 60.0

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def taken_bytes() -> int:
    """Returns this process's own memory, without mapped files, and what torch holds of GPUs."""
    taken = 0
    with contextlib.suppress(OSError):  # no Linux
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        taken = (resident - shared) * _PAGE_BYTES
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        taken += sum(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))
    return taken


def free_gpu_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def give_back_memory() -> None:
    """Gives freed memory back: glibc's, and torch's on GPUs."""
    free_gpu_memory()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class SpareMemory:
    """Has a worker give memory back when it holds more than its batches need.

    The worker calls `look` at `look_at_s` (monotonic), and sets `has_run` after a batch.
    """

    def __init__(
        self,
        spare_bytes: int,
        taken: Callable[[], int] = taken_bytes,
        give_back: Callable[[], None] = give_back_memory,
    ) -> None:
        """Lets the worker keep `spare_bytes` beyond what batches need; with 0, everything."""
        self.look_at_s = 0.0 if spare_bytes else math.inf
        self.has_run = False  # a batch, since memory was given back
        self._spare_bytes = spare_bytes
        self._taken = taken
        self._give_back = give_back
        self._again_at_s = 0.0
        self._pause_s = LOOK_S
        self._least = 0  # bytes, after the last time
        self._usual: int | None = 0  # bytes with what batches need; None: not seen since then

    def look(self, now_s: float) -> None:
        self.look_at_s = now_s + LOOK_S
        taken = self._taken()
        if self._usual is None and self.has_run:
            self._usual = taken
        usual = self._least if self._usual is None else self._usual
        is_beyond = taken > usual + self._spare_bytes
        if is_beyond or (now_s >= self._again_at_s and taken > self._least + self._spare_bytes):
            self._give_back()
            self._least, self._usual, self.has_run = self._taken(), None, False
            self._pause_s = LOOK_S if is_beyond else min(2 * self._pause_s, MOST_PAUSE_S)
            self._again_at_s = now_s + self._pause_s
