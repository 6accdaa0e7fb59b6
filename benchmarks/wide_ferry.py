"""`ferry up` with one model and several ingresses, each with a port of its own, on one Redis."""

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from benchmarks.child import Child
from benchmarks.load import BenchmarkError
from benchmarks.measured_ferry import MeasuredFerry
from benchmarks.processors import by_role
from benchmarks.servers import START_TIMEOUT_S, Job, free_ports
from cli.embedded_redis import EmbeddedRedis, find_server

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
        """Where predictions are asked for, one for each ingress."""
        path = f"/predictions/{self._job.model_name}"
        return [self.url, *(address + path for _, address in self._children)]

    def processes(self) -> dict[str, list[int]]:
        """The ids of all its processes, by what they are."""
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
        addresses = [f"http://127.0.0.1:{port}" for port in free_ports(_PORTS)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FERRY_", "TS_"))}
        environment |= self._environment(folder)
        for name, address in zip(("INFERENCE", "MANAGEMENT", "METRICS"), addresses, strict=True):
            environment[f"FERRY_{name}_ADDRESS"] = address
        # `ferry up` has begun, so the command is there.
        ferry = Path(sys.executable).with_name("ferry")
        words = [str(ferry), "ingress", "--redis-url", self._redis.url]
        child = Child(words, environment, folder)
        child.start()
        self._children.append((child, addresses[0]))
        self._wait_for(child, addresses[0])

    def _wait_for(self, child: Child, address: str) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at and child.is_running:
            with contextlib.suppress(httpx.TransportError):
                if self._client.get(f"{address}/ping", timeout=2).is_success:
                    return
            time.sleep(0.1)
        raise BenchmarkError(f"a further ingress was not healthy:\n{child.log_tail()}")

    def _stop(self) -> None:
        # Further ingresses need workers to answer what they have accepted, and all need Redis.
        children, self._children = self._children, []
        for child, _ in children:
            child.stop(whole_group=False)
        super()._stop()
        self._cleanup.close()
