"""The rig of the chaos tests on hosts of its own: Redis, an ingress and two nodes on one each."""

from pathlib import Path

from tests.chaos.rig import READY_S, Rig
from tests.chaos.tcp_redis import TcpRedis
from tests.e2e.ferry_process import FERRY, FerryProcess
from tests.network.hosts import Host, Network
from tests.support import eventually

NAMES = ["redis", "ingress", "node-a", "node-b"]


class NetworkRig(Rig):
    """An ingress and two nodes that reach Redis over the switch; the test has its own lines."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.network = network
        self.hosts = network.hosts
        host = self.hosts["redis"]
        self._free = [self.hosts["node-a"], self.hosts["node-b"]]
        self._places: dict[int, Host] = {}
        self._server = TcpRedis(host.line, host.enter)
        port = self._server.port
        try:
            super().__init__(
                folder,
                f"redis://{host.address}:{port}",
                direct_url=f"redis://{host.line}:{port}",
                host=self.hosts["ingress"].line,
            )
            self.add_node()
        except BaseException:
            self.close()
            raise

    def launch(self, words: list[str]) -> FerryProcess:
        host = self.hosts["ingress"] if words[0] == "ingress" else self._free.pop(0)
        enter, *more = host.enter
        process = FerryProcess(
            self.folder,
            [*more, str(FERRY), *words],
            program=enter,
            environment={"FERRY_ALLOW_OPEN_MANAGEMENT": "true"},
        )
        self._places[process.pid] = host
        return process

    def restore(self) -> None:
        """Starts what is gone again, on the hosts where it was."""
        gone = [node for node in self.nodes if not node.family()]
        for node in gone:
            self.remove_node(node)
            self._free.append(self.host_of(node))
        # One that could not say goodbye is listed until another node misses it.
        known = len(self.nodes)
        eventually(lambda: self.redis.zcard("{ferry}:nodes") == known, READY_S)
        for _ in gone:
            self.add_node()
        if not self._answers():
            self.restart_ingress()

    def close(self) -> None:
        if hasattr(self, "process"):
            super().close()
        self._server.close()

    def host_of(self, node: FerryProcess) -> Host:
        return self._places[node.pid]
