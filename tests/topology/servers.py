"""Redis servers as processes on ports of their own: single ones, behind sentinels, in a cluster.

From the program that `ferry up` would use. There need be no redis-cli: a cluster is put together
with the commands that redis-cli would send.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import redis

from batching.process.child_process import kill_group, spawn
from ferry.process_tree.embedded_redis import find_server
from tests.ports import free_ports_with_bus
from tests.support import eventually

HOST = "127.0.0.1"
SLOTS = 16384
START_S = 20.0
SERVICE = "torchferry"


class Node:
    """One server process; may be killed, frozen and started again at the same address."""

    def __init__(
        self,
        options: dict[str, str],
        *,
        lines: str = "",
        is_sentinel: bool = False,
        host: str = HOST,
        enter: Sequence[str] = (),
    ) -> None:
        self.port = free_ports_with_bus()
        self._folder = tempfile.TemporaryDirectory(prefix="ferry-topology-")
        self._is_sentinel = is_sentinel
        self._enter = enter
        own = {
            "port": str(self.port),
            "bind": "*" if enter else host,
            "protected-mode": "no",
            "dir": self._folder.name,
            "loglevel": "notice",
            "logfile": str(self.folder / "log"),
        }
        text = "".join(f"{name} {value}\n" for name, value in {**own, **options}.items())
        self._config = self.folder / "config"
        self._config.write_text(text + lines)
        self.client = redis.Redis(host, self.port, socket_timeout=5)
        self._process: subprocess.Popen[bytes] | None = None
        self.launch()

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def launch(self) -> None:
        """Starts the process, which may not answer yet."""
        words = [*self._enter, str(find_server().path), str(self._config)]
        if self._is_sentinel:
            words.append("--sentinel")
        self._process = spawn(words, dict(os.environ), stdout=subprocess.DEVNULL)

    def wait_started(self) -> None:
        eventually(self.answers, START_S)

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        """Kills the process and its children."""
        assert self._process is not None
        kill_group(self._process)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()
        self.kill()
        self._folder.cleanup()


class Servers:
    """Several of them, ended together."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Starts the servers and waits until they serve."""
        raise NotImplementedError

    def _add(self, *arguments: Any, **options: Any) -> Node:
        self.nodes.append(node := Node(*arguments, **options))
        return node

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.nodes.clear()

    def node(self, port: int) -> Node:
        [found] = [node for node in self.nodes if node.port == port]
        return found


PLAIN = {"save": '""', "appendonly": "no", "repl-diskless-sync-delay": "0"}


class SentinelGroup(Servers):
    """A master, its replicas, and sentinels that fail over once it was silent for a while."""

    REPLICAS = 2
    SENTINELS = 3
    DOWN_AFTER_MS = 1000

    def _start(self) -> None:
        for _ in range(1 + self.REPLICAS):
            self._add(PLAIN)
        for node in self.nodes:
            node.wait_started()
        first = self.nodes[0]
        for node in self.nodes[1:]:
            node.client.replicaof(HOST, str(first.port))
        watch = (
            f"sentinel monitor {SERVICE} {HOST} {first.port} {self.SENTINELS // 2 + 1}\n"
            f"sentinel down-after-milliseconds {SERVICE} {self.DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 10000\n"
            f"sentinel parallel-syncs {SERVICE} 2\n"
        )
        self.sentinels = [
            self._add({}, lines=watch, is_sentinel=True) for _ in range(self.SENTINELS)
        ]
        eventually(lambda: all(map(self._knows_all, self.sentinels)), START_S)

    @property
    def url(self) -> str:
        places = ",".join(one.address for one in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}"

    def master(self) -> Node:
        """Returns the master, as most sentinels see it."""
        ports = [self._master_port(one) for one in self.sentinels]
        return self.node(max(set(ports), key=ports.count))

    def _master_port(self, sentinel: Node) -> int:
        return int(sentinel.client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def _knows_all(self, sentinel: Node) -> bool:
        if not sentinel.answers():
            return False
        state = sentinel.client.sentinel_master(SERVICE)
        others = state["num-other-sentinels"]
        return bool(state["num-slaves"] == self.REPLICAS and others == self.SENTINELS - 1)


class Cluster(Servers):
    """Masters that share the slots, and replicas of each."""

    MASTERS = 3
    OPTIONS: ClassVar[dict[str, str]] = {
        **PLAIN,
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-node-timeout": "2000",
    }

    def __init__(self, *, replicas: int = 0) -> None:
        self._replicas = replicas
        super().__init__()

    def _start(self) -> None:
        masters = self.MASTERS
        for _ in range(masters * (1 + self._replicas)):
            self._add(self.OPTIONS)
        self.masters = self.nodes[:masters]
        for number, node in enumerate(self.nodes):
            node.wait_started()
            # Otherwise two that meet may both believe to be older.
            node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(self.masters):
            first, last = SLOTS * number // masters, SLOTS * (number + 1) // masters - 1
            node.client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
        for node in self.nodes[1:]:
            node.client.execute_command("CLUSTER MEET", HOST, self.nodes[0].port)
        eventually(self._know_each_other, START_S)
        for number, node in enumerate(self.nodes[masters:]):
            master = self.masters[number % masters]
            node.client.execute_command("CLUSTER REPLICATE", self.id_of(master))
        eventually(self.is_well, START_S)

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def admin(self) -> redis.RedisCluster:
        """Returns redis-py's own cluster client, for what tests look at and change."""
        return redis.RedisCluster(host=HOST, port=self.nodes[0].port)

    def id_of(self, node: Node) -> str:
        return str(node.client.execute_command("CLUSTER MYID").decode())

    def owner(self, slot: int, witnesses: Sequence[Node] = ()) -> Node:
        """Returns the slot's master in the eyes of the first of these nodes that answers."""
        for node in witnesses or self.nodes:
            with contextlib.suppress(redis.RedisError):
                for first, last, master, *_ in node.client.execute_command("CLUSTER SLOTS"):
                    if first <= slot <= last:
                        return self.node(int(master[1]))
        raise AssertionError(f"no master has slot {slot}")

    def is_well(self) -> bool:
        """Returns whether all nodes serve, and each replica has all that its master has."""
        for node in self.nodes:
            replication = node.client.info("replication")
            if replication["role"] == "slave" and replication["master_link_status"] != "up":
                return False
            if node.client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                return False
        return True

    def flush(self) -> None:
        for node in self.nodes:
            if node.client.info("replication")["role"] == "master":
                node.client.config_set("maxmemory", 0)
                node.client.flushall()

    def move_slot(self, slot: int, target: Node) -> None:
        """Moves the slot's keys to another master, step by step, as redis-cli does it."""
        source = self.owner(slot)
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.id_of(target))
        while names := source.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            source.client.execute_command("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *names)
        for node in (target, source, *self.masters):
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", self.id_of(target))

    def _know_each_other(self) -> bool:
        known = [node.client.execute_command("CLUSTER NODES") for node in self.nodes]
        return all(len(nodes) == len(self.nodes) for nodes in known)
