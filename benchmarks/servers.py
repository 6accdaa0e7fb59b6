"""TorchServe and torchferry as child processes that serve the echo model, and nothing left over."""

import importlib.metadata
import json
import os
import socket
import sys
import tempfile
import time
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from benchmarks.child import Child
from benchmarks.load import BenchmarkError
from benchmarks.torchserve_env import TORCHSERVE_VERSION

HANDLER = Path(__file__).parent / "echo" / "echo.py"
WARNINGS_ONLY = Path(__file__).with_name("torchserve_warnings_only.xml")
START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Serving:
    """How the echo model is registered, the same for every server."""

    batch_size: int = 32
    max_batch_delay_ms: int = 5
    workers: int = 1
    job_queue_size: int = 100

    def query(self) -> dict[str, str | int]:
        """The parameters of `POST /models`."""
        return {
            "url": "echo.mar",
            "batch_size": self.batch_size,
            "max_batch_delay": self.max_batch_delay_ms,
            "initial_workers": self.workers,
            "synchronous": "true",
        }


def write_echo_archive(model_store: Path) -> None:
    """`echo.mar` lies in the model store."""
    manifest = {
        "runtime": "python",
        "model": {"modelName": "echo", "modelVersion": "1.0", "handler": HANDLER.name},
        "archiverVersion": "0.12.0",
    }
    with zipfile.ZipFile(model_store / "echo.mar", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest, indent=2))
        archive.write(HANDLER, HANDLER.name)


class EchoServer(ABC):
    """A server of the echo model between `with` and the end of the block.

    Ports, folder and process group are its own, so several run beside each other and beside
    whatever else the machine serves.
    """

    name: str
    version: str
    _stops_as_group: bool

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._child: Child | None = None
        self._ports: list[int] = []
        self._client = httpx.Client(trust_env=False, timeout=START_TIMEOUT_S)

    @property
    def url(self) -> str:
        """Where predictions of the echo model are asked for."""
        return f"{self._address(0)}/predictions/echo"

    @abstractmethod
    def _command(self, folder: Path, model_store: Path) -> list[str]:
        """The command that starts the server in the foreground."""

    @abstractmethod
    def _environment(self, folder: Path) -> dict[str, str]:
        """What the server's environment has beyond this process's."""

    def __enter__(self) -> Self:
        """The model is registered and has echoed once.

        Raises:
            BenchmarkError: the server did not start, register or echo.
        """
        # A short name: unix sockets below it have paths of at most 107 characters.
        self._folder = tempfile.TemporaryDirectory(prefix="echo-")
        try:
            self._start(Path(self._folder.name))
            self._wait_until_healthy()
            self._register()
            self._check_echo()
        except httpx.HTTPError as error:
            failure = self._failure(f"broke off: {error}")
            self._stop()
            raise failure from error
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _address(self, index: int) -> str:
        return f"http://127.0.0.1:{self._ports[index]}"

    def _start(self, folder: Path) -> None:
        self._ports = free_ports(5)
        model_store = folder / "store"
        model_store.mkdir()
        write_echo_archive(model_store)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name != "REDIS_URL" and not name.startswith(("FERRY_", "TS_"))
        }
        command = self._command(folder, model_store)
        self._child = Child(command, inherited | self._environment(folder), folder)
        self._child.start()

    def _wait_until_healthy(self) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            if self._child is None or not self._child.is_running:
                raise self._failure("ended while starting")
            try:
                if self._client.get(f"{self._address(0)}/ping", timeout=2).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise self._failure(f"was not healthy after {START_TIMEOUT_S:.0f} s")

    def _register(self) -> None:
        reply = self._client.post(f"{self._address(1)}/models", params=self._serving.query())
        if not reply.is_success:
            raise self._failure(f"refused the model: {reply.status_code} {reply.text}")

    def _check_echo(self) -> None:
        body = bytes(range(256))
        headers = {"content-type": "application/octet-stream"}
        reply = self._client.post(self.url, content=body, headers=headers)
        if reply.content != body:
            raise self._failure(f"does not echo: {reply.status_code} {reply.content[:200]!r}")

    def _failure(self, what: str) -> BenchmarkError:
        log_tail = self._child.log_tail() if self._child else ""
        return BenchmarkError(f"{self.name} {what}\n{log_tail}")

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop(whole_group=self._stops_as_group)
            self._child = None
        self._client.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class TorchServe(EchoServer):
    """TorchServe with what a comparison needs: model API on, tokens and Prometheus off.

    As installed it logs each request several times; `is_quiet` leaves it only its warnings.
    """

    name = "TorchServe"
    version = TORCHSERVE_VERSION
    # Its launcher dies of SIGTERM without passing it on to Java.
    _stops_as_group = True

    def __init__(self, python: Path, serving: Serving, *, is_quiet: bool) -> None:
        super().__init__(serving)
        self._python = python
        self._is_quiet = is_quiet

    def _command(self, folder: Path, model_store: Path) -> list[str]:
        properties = {
            "inference_address": self._address(0),
            "management_address": self._address(1),
            "metrics_address": self._address(2),
            "grpc_inference_port": self._ports[3],
            "grpc_management_port": self._ports[4],
            "enable_model_api": "true",
            "disable_token_authorization": "true",
            "enable_metrics_api": "false",
            "disable_system_metrics": "true",
            "job_queue_size": self._serving.job_queue_size,
        }
        config = folder / "config.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return [
            *(str(self._python), "-m", "ts.model_server", "--start", "--foreground", "--ncs"),
            *("--model-store", str(model_store), "--ts-config", str(config)),
            *(("--log-config", str(WARNINGS_ONLY)) if self._is_quiet else ()),
        ]

    def _environment(self, folder: Path) -> dict[str, str]:
        # TEMP: Java's sockets and unpacked models; TMPDIR: the launcher's pid file, because of
        # which it would refuse to start beside another TorchServe.
        names = ("TEMP", "TMPDIR", "LOG_LOCATION", "METRICS_LOCATION")
        return dict.fromkeys(names, str(folder))


class Torchferry(EchoServer):
    """`ferry up`: embedded Redis, one ingress, one node."""

    name = "torchferry"
    # The embedded Redis must outlive the workers' goodbye.
    _stops_as_group = False

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        self.version = importlib.metadata.version("torchferry")

    def _command(self, folder: Path, model_store: Path) -> list[str]:
        ferry = Path(sys.executable).with_name("ferry")
        if not ferry.exists():
            raise BenchmarkError(f"no ferry command beside {sys.executable}: pip install -e .")
        return [str(ferry), "up", "--model-store", str(model_store)]

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            "FERRY_INFERENCE_ADDRESS": self._address(0),
            "FERRY_MANAGEMENT_ADDRESS": self._address(1),
            "FERRY_METRICS_ADDRESS": self._address(2),
            "FERRY_JOB_QUEUE_SIZE": str(self._serving.job_queue_size),
            "FERRY_WORK_DIR": str(folder / "work"),
            "FERRY_CONFIG_SNAPSHOTS": "false",
        }


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
