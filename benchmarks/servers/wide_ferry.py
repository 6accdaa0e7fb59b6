"""`ferry up` with one model and several ingresses, each with a port of its own, on one Redis."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measuring.processors import by_role
from benchmarks.servers.child import Child
from benchmarks.servers.measured_ferry import MeasuredFerry
from benchmarks.servers.server import (
    Job,
    ferry_addresses,
    ferry_command,
    free_ports,
    inherited_environment,
    local,
)
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server

_PORTS = 3


class WideFerry(MeasuredFerry):
    """A single ingress takes some thousand bodies per second, fewer than a GPU."""

    def __init__(
        self, job: Job, environment: Mapping[str, str] | None = None, *, ingresses: int
    ) -> None:
        super().__init__(job, environment)
        self._more_ingresses = ingresses - 1
        self._redis = EmbeddedRedis(find_server())
        self._children: list[tuple[Child, str]] = []
        self._cleanup = contextlib.ExitStack()

    @property
    def urls(self) -> list[str]:
        """Returns an address for predictions for each ingress."""
        url = self.url_of(self._jobs[0].model_name)
        path = url.removeprefix(self._address(0))
        return [url, *(address + path for _, address in self._children)]

    def processes(self) -> dict[str, list[int]]:
        """Returns the ids of all its processes, by their roles."""
        return by_role(self.pid, self._redis.pid, *(child.pid for child, _ in self._children))

    def _start(self, folder: Path) -> None:
        self._cleanup.enter_context(self._redis)
        super()._start(folder)

    def _command(self, folder: Path) -> list[str]:
        return [*super()._command(folder), "--redis-url", self._redis.url]

    def _wait_until_healthy(self) -> None:
        super()._wait_until_healthy()
        assert self._folder is not None
        for number in range(self._more_ingresses):
            own = Path(self._folder.name) / f"ingress-{number}"
            own.mkdir()
            self._start_ingress(own)

    def _start_ingress(self, folder: Path) -> None:
        ports = free_ports(_PORTS)
        environment = inherited_environment() | self._environment(folder) | ferry_addresses(ports)
        words = [ferry_command(), "ingress", "--redis-url", self._redis.url]
        child = Child(words, environment, folder)
        child.start()
        self._children.append((child, local(ports[0])))
        self._wait_for(child, f"{local(ports[0])}/ping")

    def _stop(self) -> None:
        # Further ingresses need workers to answer what they have accepted, and all need Redis.
        children, self._children = self._children, []
        for child, _ in children:
            child.stop(whole_group=False)
        super()._stop()
        self._cleanup.close()
