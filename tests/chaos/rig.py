"""The whole server in parts that can be killed one by one: Redis, an ingress, nodes."""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import redis
import requests

from batching.models.spec import VersionKey
from batching.store.keys import VersionKeys
from ferry.process_tree.embedded_redis import EmbeddedRedis
from tests.chaos import checker
from tests.chaos.crowd import Crowd
from tests.e2e.archives import HANDLER, Call, Ledger, make_archive
from tests.e2e.ferry_process import FerryProcess, FerryServer
from tests.ports import free_ports
from tests.support import Backend, came_true, eventually

READY_S = 20.0
FRESH_BEAT_MS = 1000
QUIET_S = 20.0


class Rig(FerryServer):
    """An ingress and its nodes as processes of their own, on a Redis that the test owns."""

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        *,
        direct_url: str = "",
        host: str = "127.0.0.1",
        server: EmbeddedRedis | None = None,
    ) -> None:
        self.server = server
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir(parents=True)
        self.port = free_ports(3)
        self.host = host
        self.inference = f"http://{host}:{self.port}"
        self.management = f"http://{host}:{self.port + 1}"
        self.metrics = f"http://{host}:{self.port + 2}"
        self.http = requests.Session()
        self.http.trust_env = False
        self.redis_url = redis_url
        self.redis = redis.Redis.from_url(direct_url or redis_url)
        self.nodes: list[FerryProcess] = []
        self.start_ingress()
        self.add_node()

    # --- parts

    def start_ingress(self) -> None:
        """Starts the ingress and waits until it listens; its predecessor must be gone."""
        addresses = [
            ("--inference-address", self.inference),
            ("--management-address", self.management),
            ("--metrics-address", self.metrics),
        ]
        words = [word for pair in addresses for word in pair]
        self.process = self.launch(["ingress", *words, *self._options()])
        self.process.wait_for_line(f"listening address={self.metrics}")

    def restart_ingress(self) -> None:
        """Kills the ingress, and starts another one in its place."""
        self.process.kill()
        self.start_ingress()

    def add_node(self, *more: str) -> FerryProcess:
        """Starts one more node, with more options, and waits until it has joined."""
        joined = lambda: set(self.redis.zrange("{ferry}:nodes", 0, -1))  # noqa: E731
        known = joined()
        node = self.launch_node(*more)
        # A dead one may be forgotten meanwhile, so that their number stays.
        assert came_true(lambda: joined() - known, READY_S), node.log()
        return node

    def launch_node(self, *more: str) -> FerryProcess:
        """Starts one more node without waiting for it."""
        node = self.launch(["node", *self._options(), *more])
        self.nodes.append(node)
        return node

    def launch(self, words: list[str]) -> FerryProcess:
        """Starts `ferry` with these words."""
        return FerryProcess(self.folder, words)

    def remove_node(self, node: FerryProcess) -> None:
        """Kills the node and all its processes."""
        self.nodes.remove(node)
        node.kill()

    def restore(self) -> None:
        """Brings back Redis, one ingress and one node, whatever a test has stopped or broken."""
        if self.server is not None and not self.server.answers():
            self.server.start()
        for part in (self.process, *self.nodes):
            part.wake()
        if self.process.has_ended() or self._drains(self.process) or not self._answers():
            self.restart_ingress()
        for node in self.nodes[1:]:
            if not node.has_ended():
                node.stop(signal.SIGTERM)
            self.remove_node(node)
        if self.nodes and (self._drains(self.nodes[0]) or not self._beats()):
            self.remove_node(self.nodes[0])
        if not self.nodes:
            self.add_node()

    def _drains(self, part: FerryProcess) -> bool:
        """Returns whether the part was told to stop, and may end at any moment."""
        return "draining" in part.log()

    def _beats(self) -> bool:
        """Returns whether the node runs and has beaten within the last second, or does so soon."""
        node = self.nodes[0]

        def is_heard() -> bool:
            seconds, microseconds = self.redis.time()
            beats = self.redis.zrange("{ferry}:nodes", -1, -1, withscores=True)
            age_ms = seconds * 1000 + microseconds / 1000 - (beats[0][1] if beats else 0)
            return node.has_ended() or age_ms < FRESH_BEAT_MS

        return came_true(is_heard, READY_S) and not node.has_ended()

    def unregister_all(self) -> None:
        """Unregisters the models that a test has left."""
        with contextlib.suppress(requests.RequestException):
            for model in self.manage("GET", "models").json()["models"]:
                self.manage("DELETE", f"models/{model['modelName']}")

    def close(self) -> None:
        for process in (self.process, *self.nodes):
            process.kill()
        self.redis.close()

    def logs(self) -> list[tuple[str, str]]:
        return [part.section() for part in (self.process, *self.nodes)]

    def processes(self) -> list[psutil.Process]:
        """Returns every living process of the server, Redis apart."""
        processes = []
        for line in [line for part in (self.process, *self.nodes) for line in part.family()]:
            with contextlib.suppress(psutil.NoSuchProcess):  # that of control jobs ends when idle
                processes.append(psutil.Process(int(line.split()[0])))
        return processes

    def _options(self) -> list[str]:
        return ["--redis-url", self.redis_url, "--model-store", str(self.store)]

    def _answers(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return self.http.get(f"{self.inference}/livez", timeout=2).status_code == 200
        return False

    # --- models

    def archive(
        self,
        name: str,
        pace_s: float = 0.0,
        queue_size: int = 1000,
        files: Mapping[str, str] | None = None,
        config: str = "",
    ) -> tuple[str, Ledger]:
        """Archives the scripted handler in the model store; returns the name and the ledger."""
        ledger = Ledger(self.store / f"{name}.ledger")
        ledger.clear()
        content = {
            "handler.py": HANDLER.read_text(encoding="utf-8"),
            "ledger": str(ledger.path),
            "pace": str(pace_s),
            **(files or {}),
        }
        config = f"jobQueueSize: {queue_size}\n{config}"
        return make_archive(self.store, name, content, config=config), ledger

    @contextlib.contextmanager
    def serve(
        self,
        name: str,
        *,
        pace_s: float = 0.0,
        queue_size: int = 1000,
        files: Mapping[str, str] | None = None,
        config: str = "",
        workers: int = 1,
        **parameters: Any,
    ) -> Iterator["Served"]:
        """Serves the scripted handler with `workers` ready workers per node."""
        archive, ledger = self.archive(name, pace_s, queue_size, files, config)
        query = {"batch_size": 1, "max_batch_delay": 5, "initial_workers": workers, **parameters}
        try:
            self.register(archive, **query)
            yield Served(self, name, ledger)
        finally:
            with contextlib.suppress(requests.RequestException):
                self.manage("DELETE", f"models/{name}")


class Served:
    """One served model, its ledger and its keys."""

    def __init__(self, rig: Rig, name: str, ledger: Ledger) -> None:
        self.rig = rig
        self.name = name
        self.ledger = ledger
        self.keys = VersionKeys.of(VersionKey(name, "1.0"))

    def calls(self) -> list[Call]:
        return self.ledger.calls()

    def let_go(self, pid: int | None = None) -> None:
        self.ledger.let_go(pid)

    def bodies(self) -> list[str]:
        """Returns every body that was run, in order, as often as it was run."""
        return [body for call in self.calls() for body in call.bodies]

    def counters(self) -> dict[str, int]:
        record = self.rig.redis.hgetall(self.keys.counters)
        return {name.decode(): int(value) for name, value in record.items()}

    def leaks(self) -> list[str]:
        """Returns keys of all models that would stay for ever although nothing says so."""
        backend = Backend(client=self.rig.redis, connect=lambda: None, connect_async=lambda: None)
        return [name for name in backend.leaks() if not name.startswith("rq:")]

    def waiting(self) -> int:
        return int(self.rig.redis.llen(self.keys.queue))

    def open_requests(self) -> int:
        return int(self.rig.redis.hlen(self.keys.open))

    def pids(self) -> list[int]:
        return self.rig.worker_pids(self.name)

    def living_pids(self) -> list[int]:
        """Returns the workers that live: one of a node that was just killed is listed a while."""
        return [pid for pid in self.pids() if psutil.pid_exists(pid)]

    def wait_staffed(self, workers: int = 1) -> None:
        eventually(lambda: len(self.pids()) == workers, READY_S)

    def wait_calls(self, count: int) -> list[Call]:
        assert came_true(lambda: len(self.calls()) >= count, 10), "no such call"
        return self.calls()

    def seconds_until_served(self, crowd: Crowd, limit_s: float) -> float:
        """Returns how long it takes until a request is served again."""
        start = time.monotonic()
        tries = itertools.count()
        eventually(lambda: crowd.ask(self.name, [f"back? {next(tries)}"])[0].status == 200, limit_s)
        return time.monotonic() - start

    def node_of(self, pid: int) -> FerryProcess:
        """Returns the node whose worker this is."""
        [node] = [
            node
            for node in self.rig.nodes
            if any(line.split()[0] == str(pid) for line in node.family())
        ]
        return node

    def check(self, crowd: Crowd) -> None:
        """Asserts, once no request is open, that log, ledger and counters agree."""
        log = crowd.wait()
        assert came_true(lambda: self.open_requests() == 0, QUIET_S), "requests stay open"
        calls = self.calls()
        wrong = checker.answers(log) + checker.executions(log, calls)
        wrong += checker.departures(log, calls)
        wrong += checker.conservation(self.counters(), self.open_requests())
        assert wrong == [], f"{len(wrong)} faults, the first: {wrong[:5]}"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
