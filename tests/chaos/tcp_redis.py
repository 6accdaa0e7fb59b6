"""Redis servers on ports, for replication and hosts of their own, and one that keeps a file."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.crowd import for_seconds
from tests.support import eventually
from tests.topology.servers import HOST, PLAIN, Node

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


class TcpRedis(Node):
    """One server on a free port that has started; writes nothing to disk of its own accord.

    `host` is where the test reaches it, `enter` the words that lead a program to its machine.
    """

    def __init__(self, host: str = HOST, enter: Sequence[str] = ()) -> None:
        super().__init__(PLAIN, host=host, enter=enter)
        self.wait_started()

    def follow(self, primary: "TcpRedis") -> None:
        """Copies all that the primary has, and goes on copying."""
        self.client.replicaof(HOST, str(primary.port))
        eventually(lambda: self.client.info("replication")["master_link_status"] == "up", 10)

    def stand_alone(self) -> None:
        """Stops copying, and takes writes."""
        self.client.replicaof("NO", "ONE")

    def lose_folder(self) -> None:
        """Removes the folder that it writes to."""
        self._folder.cleanup()


class LastingRedis(Node):
    """One server that keeps what it has in an append-only file.

    It may be stopped, killed or lose power, and started again with its file, and loses
    some of it when power fails.
    """

    def __init__(self) -> None:
        super().__init__(APPENDING)
        self.url = f"redis://{HOST}:{self.port}"
        self.wait_started()

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
