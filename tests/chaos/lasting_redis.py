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
# `everysec` may lose a second.
UNSYNCED_S = 0.8
AWAY_S = 0.5


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

    def restart(self) -> None:
        """Has the server end in good order, and starts it again."""
        self._end(signal.SIGTERM)
        self._start_again()

    def crash(self) -> None:
        """Kills the server, and starts it again; the kernel has written all that it was given."""
        self._end(signal.SIGKILL)
        self._start_again()

    def lose_power(self) -> tuple[float, float]:
        """Has what the server wrote last not reach the disk, and starts it again.

        Returns:
            Since when, and until when, what it took is lost, on the clock of `time.monotonic`.
        """
        since = time.monotonic()
        kept_bytes = self._file().stat().st_size
        for_seconds(UNSYNCED_S)
        self._end(signal.SIGKILL)
        os.truncate(self._file(), kept_bytes)
        return since, self._start_again()

    def _start_again(self) -> float:
        """Starts the server after a while; returns when. Main thread only."""
        for_seconds(AWAY_S)
        started_at = time.monotonic()
        self.launch()
        self.wait_started()
        return started_at

    def _end(self, number: int) -> None:
        assert self._process is not None
        os.kill(self.pid, number)
        self._process.wait(10)

    def _file(self) -> Path:
        [path] = (self.folder / "appendonlydir").glob("*.incr.aof")
        return path
