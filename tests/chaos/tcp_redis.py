"""Redis servers on ports, for what unix sockets cannot do: replication, and hosts of their own."""

from collections.abc import Sequence
from typing import Self

from tests.support import eventually
from tests.topology.servers import HOST, PLAIN, Node


class TcpRedis(Node):
    """One server on a free port that has started; writes nothing to disk of its own accord.

    `host` is where the test reaches it, `enter` the words that lead a program to its machine.
    """

    def __init__(self, host: str = HOST, enter: Sequence[str] = ()) -> None:
        super().__init__(PLAIN, host=host, enter=enter)
        self.wait_started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
