"""`ferry up`, further nodes beside it, and any number of models of one handler."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from benchmarks.measuring.load import BenchmarkError
from benchmarks.measuring.processors import by_role
from benchmarks.servers.archives import write_archive
from benchmarks.servers.child import Child
from benchmarks.servers.server import (
    ferry_addresses,
    ferry_command,
    free_ports,
    inherited_environment,
    local,
)
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0

NAPPING = Path(__file__).with_name("napping_handler.py")
_ARCHIVE = "model.mar"


class Fleet:
    """Everything runs from `with` to the end of the block; ports and folders are its own.

    With one node `ferry up` brings its own Redis, as a user's does; with more they share one.

    Args:
        nodes: how many, that of `ferry up` included.
        ports: for inference, management and metrics; any that are free unless given.
        handler: the file of the models' handler.
    """

    def __init__(
        self, nodes: int = 1, ports: Sequence[int] = (), *, handler: Path = NAPPING
    ) -> None:
        self._nodes = nodes
        self._handler = handler
        self._children: list[Child] = []
        self._redis_pids: list[int] = []
        self._client = httpx.Client(trust_env=False, timeout=ANSWER_TIMEOUT_S)
        self._cleanup = contextlib.ExitStack()
        self._ports = ports or free_ports(3)

    def __enter__(self) -> Self:
        """Starts the servers and waits until all nodes have joined.

        Raises:
            BenchmarkError: something did not start.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._client.close)
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True)
            )
            self._start(Path(folder), stack)
            self._wait_for_nodes()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def metrics_url(self) -> str:
        """Returns the address with the batch sizes."""
        return f"{self._address(2)}/metrics"

    @property
    def management_url(self) -> str:
        return self._address(1)

    def url(self, model_name: str) -> str:
        """Returns the address for predictions of this model."""
        return f"{self._address(0)}/predictions/{model_name}"

    def register(self, model_name: str, **parameters: str | int) -> None:
        """Registers the model and waits for its workers, by default one per node.

        Raises:
            BenchmarkError: it was refused.
        """
        asked = {"initial_workers": 1, "synchronous": "true", **parameters}
        self._manage("POST", "models", url=_ARCHIVE, model_name=model_name, **asked)

    def unregister(self, model_name: str) -> None:
        """Unregisters the model and waits until its workers have ended.

        Raises:
            BenchmarkError: it was not there.
        """
        self._manage("DELETE", f"models/{model_name}")

    def scale(self, model_name: str, workers: int) -> None:
        """Scales the model to this many workers per node and waits for them.

        Raises:
            BenchmarkError: it was refused.
        """
        self._manage("PUT", f"models/{model_name}", min_worker=workers, synchronous="true")

    def processes(self) -> dict[str, list[int]]:
        """Returns the ids of all its processes, by their roles."""
        return by_role(*(child.pid for child in self._children), *self._redis_pids)

    def _start(self, folder: Path, stack: contextlib.ExitStack) -> None:
        store = folder / "store"
        store.mkdir()
        model = {"modelName": "model", "modelVersion": "1.0", "handler": self._handler.name}
        write_archive(store / _ARCHIVE, model, self._handler)
        common = ["--model-store", str(store)]
        if self._nodes > 1:
            redis = stack.enter_context(EmbeddedRedis(find_server()))
            common += ["--redis-url", redis.url]
            self._redis_pids = [redis.pid]
        for number, role in enumerate(["up", *["node"] * (self._nodes - 1)]):
            own = folder / str(number)
            own.mkdir()
            child = Child([ferry_command(), role, *common], self._environment(own), own)
            child.start()
            # Those that began last end first: the Redis of `ferry up` must outlive the others.
            stack.callback(child.stop, whole_group=False)
            self._children.append(child)

    def _environment(self, folder: Path) -> dict[str, str]:
        return inherited_environment() | {
            **ferry_addresses(self._ports),
            "FERRY_JOB_QUEUE_SIZE": "1000",
            "FERRY_WORK_DIR": str(folder / "work"),
            "LOG_LOCATION": str(folder / "logs"),
        }

    def _wait_for_nodes(self) -> None:
        wanted = f"ferry_nodes {self._nodes}.0"
        self._wait_until(lambda: wanted in self._client.get(self.metrics_url).text)

    def _wait_until(self, is_true: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            for child in self._children:
                if not child.is_running:
                    raise BenchmarkError(f"torchferry ended while starting:\n{child.log_tail()}")
            with contextlib.suppress(httpx.TransportError):
                if is_true():
                    return
            time.sleep(0.1)
        logs = "\n".join(child.log_tail() for child in self._children)
        raise BenchmarkError(f"torchferry was not up after {START_TIMEOUT_S:.0f} s:\n{logs}")

    def _manage(self, method: str, path: str, **parameters: Any) -> None:
        answer = self._client.request(method, f"{self._address(1)}/{path}", params=parameters)
        if not answer.is_success:
            raise BenchmarkError(f"{method} {path}: {answer.status_code} {answer.text}")

    def _address(self, index: int) -> str:
        return local(self._ports[index])
