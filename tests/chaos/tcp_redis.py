"""Redis servers on ports, for what unix sockets cannot do: replication."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Self

import redis

from batching.process.child_process import kill_group, spawn
from ferry.process_tree.embedded_redis import find_server
from tests.ports import free_ports
from tests.support import eventually


class TcpRedis:
    """One server on a free port; writes nothing to disk of its own accord.

    `host` is where the test reaches it, `enter` the words that lead a program to its machine.
    """

    def __init__(self, host: str = "127.0.0.1", enter: Sequence[str] = ()) -> None:
        self.port = free_ports(1)
        self._folder = tempfile.TemporaryDirectory(prefix="ferry-chaos-")
        options = {
            "port": str(self.port),
            "bind": "*" if enter else host,
            "protected-mode": "no",
            "dir": self._folder.name,
            "save": "",
            "loglevel": "warning",
            "repl-diskless-sync-delay": "0",
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        words = [*enter, str(find_server().path), *flags]
        self._process = spawn(words, dict(os.environ), stdout=subprocess.DEVNULL)
        self.client = redis.Redis(host, self.port)
        eventually(self._answers, 10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        kill_group(self._process)
        self._folder.cleanup()

    def follow(self, primary: "TcpRedis") -> None:
        """Copies all that the primary has, and goes on copying."""
        self.client.replicaof("127.0.0.1", str(primary.port))
        eventually(lambda: self.client.info("replication")["master_link_status"] == "up", 10)

    def stand_alone(self) -> None:
        """Stops copying, and takes writes."""
        self.client.replicaof("NO", "ONE")

    def lose_folder(self) -> None:
        """Removes the folder that it writes to."""
        self._folder.cleanup()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False
