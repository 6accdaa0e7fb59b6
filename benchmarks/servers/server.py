"""A server as a child process between `with` and the end of the block, and nothing left over."""

import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from benchmarks.measuring.load import BenchmarkError
from benchmarks.measuring.processors import by_name
from benchmarks.servers.child import Child

CONTENT_TYPE = "application/octet-stream"
START_TIMEOUT_S = 240.0
PORTS = 5
# Below those that Linux gives to outgoing connections: one of these, made between the choice of a
# port and its use, would take it.
LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000


@dataclass(frozen=True, slots=True)
class Job:
    """A model that a server is to serve, and how."""

    model_name: str
    # An archive, or the folder of one.
    archive: Path
    batch_size: int
    max_batch_delay_ms: int
    job_queue_size: int = 100
    workers: int = 1
    # What only torchferry understands.
    own_archive: Path | None = None
    own_parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """Returns the OpenMP threads of each worker: together no more than there are cores."""
        return max(1, len(os.sched_getaffinity(0)) // self.workers)


class Server(ABC):
    """One server with a model for each job.

    Ports, folder and process group are its own, so several run beside each other and beside
    whatever else the machine serves.
    """

    name: str
    version: str
    _stops_as_group: bool

    def __init__(self, *jobs: Job) -> None:
        self._jobs = jobs
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._child: Child | None = None
        self._ports: list[int] = []
        self._client = httpx.Client(trust_env=False, timeout=START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """Returns the first of its processes.

        Raises:
            RuntimeError: it is not up.
        """
        if self._child is None:
            raise RuntimeError(f"{self.name} is not up")
        return self._child.pid

    def processes(self) -> dict[str, list[int]]:
        """Returns the ids of all its processes, by what kind of process they are."""
        return by_name(self.pid)

    @abstractmethod
    def url_of(self, model_name: str) -> str:
        """Returns the address for predictions of the model."""

    @property
    @abstractmethod
    def _health_url(self) -> str:
        """Returns the address that answers with a success once the server is up."""

    @abstractmethod
    def _command(self, folder: Path) -> list[str]:
        """Returns the command that starts the server in the foreground."""

    @abstractmethod
    def _environment(self, folder: Path) -> dict[str, str]:
        """Returns what the server's environment has beyond this process's."""

    def _register(self) -> None:  # noqa: B027 - most begin with it
        """Registers the models, unless the server has begun with them."""

    def ask(self, model_name: str, body: bytes) -> bytes:
        """Asks the model once and returns its answer.

        Raises:
            BenchmarkError: it was answered with an error.
        """
        reply = self._client.post(
            self.url_of(model_name), content=body, headers={"content-type": CONTENT_TYPE}
        )
        if not reply.is_success:
            raise self._failure(f"answered {reply.status_code} {reply.text[:500]}")
        return reply.content

    def __enter__(self) -> Self:
        """Starts the server and waits for it and the models.

        Raises:
            BenchmarkError: the server did not start or refused a model.
        """
        # A short name: unix sockets below it have paths of at most 107 characters.
        self._folder = tempfile.TemporaryDirectory(prefix="cmp-", ignore_cleanup_errors=True)
        try:
            self._start(Path(self._folder.name))
            self._wait_until_healthy()
            self._register()
        except httpx.HTTPError as error:
            failure = self._failure(f"broke off: {error}")
            self._stop()
            raise failure from error
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _address(self, index: int) -> str:
        return local(self._ports[index])

    def _start(self, folder: Path) -> None:
        self._ports = self._ports or free_ports(PORTS)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self._jobs[0].threads))
        command = self._command(folder)
        environment = inherited_environment() | threads | self._environment(folder)
        self._child = Child(command, environment, folder)
        self._child.start()

    def _wait_until_healthy(self) -> None:
        assert self._child is not None
        self._wait_for(self._child, self._health_url)

    def _wait_for(self, child: Child, health_url: str) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            if not child.is_running:
                raise self._failure("ended while starting", child)
            with contextlib.suppress(httpx.TransportError):
                if self._client.get(health_url, timeout=2).is_success:
                    return
            time.sleep(0.1)
        raise self._failure(f"was not healthy after {START_TIMEOUT_S:.0f} s", child)

    def _failure(self, what: str, child: Child | None = None) -> BenchmarkError:
        child = child or self._child
        return BenchmarkError(f"{self.name} {what}\n{child.log_tail() if child else ''}")

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop(whole_group=self._stops_as_group)
            self._child = None
        self._client.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def inherited_environment() -> dict[str, str]:
    """This process's environment without what would configure a server."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "REDIS_URL" and not name.startswith(("FERRY_", "TS_"))
    }


def ferry_addresses(ports: Sequence[int]) -> dict[str, str]:
    """Returns the options that let an ingress listen on the first three of these ports."""
    names = ("INFERENCE", "MANAGEMENT", "METRICS")
    return {f"FERRY_{name}_ADDRESS": local(port) for name, port in zip(names, ports, strict=False)}


def local(port: int) -> str:
    """Returns the URL of what listens on this port."""
    return f"http://127.0.0.1:{port}"


def ferry_command() -> str:
    """Returns the `ferry` of this environment.

    Raises:
        BenchmarkError: it is not installed.
    """
    ferry = Path(sys.executable).with_name("ferry")
    if not ferry.exists():
        raise BenchmarkError(f"no ferry command beside {sys.executable}: pip install -e .")
    return str(ferry)


def json_answer(answer: bytes) -> Any:
    """Returns the content of a JSON answer.

    Raises:
        BenchmarkError: it is no JSON.
    """
    try:
        return json.loads(answer)
    except ValueError as error:
        raise BenchmarkError(f"no JSON: {answer[:200]!r}") from error


def free_ports(count: int) -> list[int]:
    """Returns ports of the loopback interface that are free now."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            port = LOWEST_PORT + secrets.randbelow(HIGHEST_PORT - LOWEST_PORT)
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found
