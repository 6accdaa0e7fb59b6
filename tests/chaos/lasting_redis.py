"""A Redis that keeps what it has in an append-only file, and loses some of it when power fails."""

import os
import signal
import time
from pathlib import Path
from typing import Self

from tests.chaos.crowd import for_seconds
from tests.topology.servers import HOST, Node

# One file, never written anew: what was in it at some moment is its first bytes.
APPENDING = {
    "save": '""',
    "appendonly": "yes",
    "appendfsync": "everysec",
    "auto-aof-rewrite-percentage": "0",
}
# `everysec` may lose a second. A little less, as it takes time to find the size and to kill.
UNSYNCED_S = 0.8


class LastingRedis(Node):
    """One server that may be stopped, killed or lose power, and started again with its file."""

    def __init__(self) -> None:
        super().__init__(APPENDING)
        self.url = f"redis://{HOST}:{self.port}"
        self.wait_started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the server and waits until it has read its file; main thread only."""
        self.launch()
        self.wait_started()

    def stop(self) -> None:
        """Has the server end in good order."""
        self._end(signal.SIGTERM)

    def crash(self) -> None:
        """Kills the server process: the kernel still writes what it was given."""
        self._end(signal.SIGKILL)

    def lose_power(self) -> float:
        """Kills the server, and what it wrote in its last second does not reach the disk.

        Returns:
            When it was killed, on the clock of `time.monotonic`.
        """
        kept_bytes = self._file().stat().st_size
        for_seconds(UNSYNCED_S)
        self._end(signal.SIGKILL)
        killed_at = time.monotonic()
        os.truncate(self._file(), kept_bytes)
        return killed_at

    def _end(self, number: int) -> None:
        assert self._process is not None
        os.kill(self.pid, number)
        self._process.wait(10)

    def _file(self) -> Path:
        [path] = (self.folder / "appendonlydir").glob("*.incr.aof")
        return path
