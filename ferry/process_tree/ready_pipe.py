"""The reading side of `batching.process.part`: when a child of `ferry up` has joined in."""

import json
import os
from typing import Any

from batching.process.part import READY_LINE


class ReadyPipe:
    """The reading end, and the writing end until a child has taken it over."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._pending = b""
        self.is_ready = False
        self.is_closed = False
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
        """Closes both ends."""
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
