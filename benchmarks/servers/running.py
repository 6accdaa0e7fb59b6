"""Servers as child processes between `with` and the end of the block, and nothing left over."""

import contextlib
import importlib.metadata
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measuring.load import BINARY
from benchmarks.measuring.processors import descendants, role_of
from benchmarks.measuring.records import OURS, BenchmarkError, commit_of
from benchmarks.servers.child import (
    Child,
    ferry_command,
    free_ports,
    inherited_environment,
    local,
    write_archive,
)
from benchmarks.servers.installed import TORCHSERVE_VERSION, write_captum
from ferry.process_tree.embedded_redis import EmbeddedRedis, find_server

HANDLERS = Path(__file__).with_name("handlers.py")
MOSEC_APP = Path(__file__).with_name("mosec_app.py")
START_TIMEOUT_S = 240.0
# OpenMP threads of a model's one worker: as many as there are cores.
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(len(os.sched_getaffinity(0))))
# The archive that `Torchferry(handler=...)` registers under any name.
_ANY = "any.mar"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server is to serve, and how."""

    name: str
    archive: Path
    batch_size: int
    max_batch_delay_ms: int
    queue_size: int = 100


class Server:
    """Ports, folder and process group are its own, so several run beside each other."""

    name: str
    version: str
    # Where its models' addresses begin.
    path = "/predictions/"
    kind_of = staticmethod(psutil.Process.name)
    stops_as_group = False

    def __init__(self, *models: ServedModel, python: Path | None = None) -> None:
        self._models = models
        self._python = str(python)
        self._ports = free_ports(5)
        self._client = httpx.Client(trust_env=False, timeout=START_TIMEOUT_S)
        self._children: list[Child] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Starts the server and waits for it and the models.

        Raises:
            BenchmarkError: the server did not start or refused a model.
        """
        # What of it has started ends when it does not start.
        with self._stack:
            self._stack.enter_context(self._client)
            # A short name: unix sockets below it have paths of at most 107 characters.
            folder = tempfile.TemporaryDirectory(prefix="cmp-", ignore_cleanup_errors=True)
            self.folder = Path(self._stack.enter_context(folder))
            try:
                self._start()
            except httpx.HTTPError as error:
                raise self._failure(f"broke off: {error}") from error
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        raise NotImplementedError

    def url_of(self, model_name: str) -> str:
        return f"{local(self._ports[0])}{self.path}{model_name}"

    def processes(self) -> dict[str, list[int]]:
        """Returns the ids of all its processes, by what kind of process they are.

        Raises:
            BenchmarkError: one that was started has ended.
        """
        if not all(child.is_running for child in self._children):
            raise self._failure("has ended")
        kinds: dict[str, list[int]] = {}
        for process in descendants(*(child.pid for child in self._children)):
            kinds.setdefault(self.kind_of(process), []).append(process.pid)
        return kinds

    def ask(self, model_name: str, body: bytes) -> bytes:
        """Asks the model once and returns its answer.

        Raises:
            BenchmarkError: it was answered with an error.
        """
        headers = {"content-type": BINARY}
        reply = self._client.post(self.url_of(model_name), content=body, headers=headers)
        if not reply.is_success:
            raise self._failure(f"answered {reply.status_code} {reply.text[:500]}")
        return reply.content

    def manage(self, method: str, path: str, **parameters: Any) -> None:
        """Calls the management API.

        Raises:
            BenchmarkError: it refused.
        """
        url = f"{local(self._ports[1])}/{path}"
        answer = self._client.request(method, url, params=parameters)
        if not answer.is_success:
            raise self._failure(f"{method} {path}: {answer.status_code} {answer.text}")

    def register(self, model_name: str, **parameters: str | int) -> None:
        """Registers the model and waits for its workers, by default one per node."""
        asked = {"url": _ANY, "initial_workers": 1, "synchronous": "true", **parameters}
        self.manage("POST", "models", model_name=model_name, **asked)

    def register_all(self) -> None:
        """Registers the models that it is to serve from the start."""
        for model in self._models:
            asked = {"batch_size": model.batch_size, "max_batch_delay": model.max_batch_delay_ms}
            self.register(model.name, url=f"{model.name}.mar", **asked)

    def unregister(self, model_name: str) -> None:
        """Unregisters the model and waits until its workers have ended."""
        self.manage("DELETE", f"models/{model_name}")

    def _store(self) -> str:
        store = self.folder / "store"
        store.mkdir()
        for model in self._models:
            shutil.copy(model.archive, store / f"{model.name}.mar")
        return str(store)

    def _run(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """Starts one process, which is stopped before all that was started earlier."""
        threads = THREADS if self._models else {}
        folder.mkdir(exist_ok=True)
        child = Child(command, inherited_environment() | threads | environment, folder)
        child.start()
        self._stack.callback(child.stop, whole_group=self.stops_as_group)
        self._children.append(child)

    def _wait_for(self, path: str) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at:
            if not all(child.is_running for child in self._children):
                raise self._failure("ended while starting")
            with contextlib.suppress(httpx.TransportError):
                answer = self._client.get(local(self._ports[0]) + path, timeout=2)
                if answer.is_success and self._has_all_nodes():
                    return
            time.sleep(0.1)
        raise self._failure(f"was not up after {START_TIMEOUT_S:.0f} s")

    def _has_all_nodes(self) -> bool:
        return True

    def _failure(self, what: str) -> BenchmarkError:
        logs = "\n".join(child.log_tail() for child in self._children)
        return BenchmarkError(f"{self.name} {what}\n{logs}")


class TorchServe(Server):
    """TorchServe with what a comparison needs: model API on, tokens and Prometheus off."""

    name, version = "TorchServe", TORCHSERVE_VERSION
    # Its launcher dies of SIGTERM without passing it on to Java.
    stops_as_group = True

    def _start(self) -> None:
        properties = {
            "inference_address": local(self._ports[0]),
            "management_address": local(self._ports[1]),
            "metrics_address": local(self._ports[2]),
            "grpc_inference_port": self._ports[3],
            "grpc_management_port": self._ports[4],
            "enable_model_api": "true",
            "disable_token_authorization": "true",
            "enable_metrics_api": "false",
            "disable_system_metrics": "true",
            "job_queue_size": max(model.queue_size for model in self._models),
        }
        config = self.folder / "config.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        command = [self._python, "-m", "ts.model_server", "--start", "--foreground", "--ncs"]
        command += ["--model-store", self._store(), "--ts-config", str(config)]
        write_captum(self.folder / "modules")
        # TEMP: Java's sockets and unpacked models; TMPDIR: the launcher's pid file, because of
        # which it would refuse to start beside another TorchServe.
        names = ("TEMP", "TMPDIR", "LOG_LOCATION", "METRICS_LOCATION")
        environment = dict.fromkeys(names, str(self.folder))
        environment["PYTHONPATH"] = str(self.folder / "modules")
        self._run(command, environment, self.folder)
        self._wait_for("/ping")
        self.register_all()


class Mosec(Server):
    """It takes no archives: `mosec_app.py` has the models, and its queue is in memory."""

    name, version = "mosec", "0.9.8"
    path = "/"

    def _start(self) -> None:
        address = ("--address", "127.0.0.1", "--port", str(self._ports[0]))
        command = [self._python, "-P", str(MOSEC_APP), *address, "--timeout", "120000"]
        environment = {
            "BENCH_BATCH_SIZE": str(self._models[0].batch_size),
            "BENCH_DELAY_MS": str(self._models[0].max_batch_delay_ms),
        }
        self._run(command, environment, self.folder)
        self._wait_for("/")


class Torchferry(Server):
    """`ferry up`, with its own Redis as a user's; further nodes share one with it.

    Args:
        models: registered at the start.
        handler: the name of one of `handlers.py`, which `register` registers under any name.
        tree: another working tree, whose code runs on the same interpreter and packages.
        nodes: how many, that of `ferry up` included.
        settings: further environment variables.
    """

    name = OURS
    kind_of = staticmethod(role_of)

    def __init__(
        self,
        *models: ServedModel,
        handler: str = "",
        tree: Path | None = None,
        nodes: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(*models)
        self._handler, self._nodes = handler, nodes
        self._settings = dict(settings or {})
        self._redis: EmbeddedRedis | None = None
        self.version = importlib.metadata.version(OURS)
        if tree is not None:
            self.name, self.version = f"{OURS} before", commit_of(tree)
            self._settings["PYTHONPATH"] = str(tree)

    def metrics(self, **labels: str) -> dict[str, float]:
        """Reads /metrics: sums of the samples with these labels, by their names."""
        text = self._client.get(f"{local(self._ports[2])}/metrics").raise_for_status().text
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if labels.items() <= sample.labels.items():
                    totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def batches(self, model_name: str) -> tuple[float, float]:
        """Returns how many batches the model has run so far, and of how many requests."""
        totals = self.metrics(model=model_name)
        return totals.get("ferry_batch_size_count", 0.0), totals.get("ferry_batch_size_sum", 0.0)

    def processes(self) -> dict[str, list[int]]:
        kinds = super().processes()
        return kinds | {"Redis": [self._redis.pid]} if self._redis else kinds

    def _has_all_nodes(self) -> bool:
        return self.metrics().get("ferry_nodes") == self._nodes

    def _start(self) -> None:
        common = ["--model-store", self._store()]
        if self._handler:
            described = {"handler": f"{HANDLERS.name}:{self._handler}"}
            write_archive(self.folder / "store" / _ANY, described, HANDLERS)
        if self._nodes > 1:
            self._redis = self._stack.enter_context(EmbeddedRedis(find_server()))
            common += ["--redis-url", self._redis.url]
        sizes = [model.queue_size for model in self._models]
        names = ("INFERENCE", "MANAGEMENT", "METRICS")
        for number, role in enumerate(["up", *["node"] * (self._nodes - 1)]):
            # Those that began last end first.
            own = self.folder / f"{role}-{number}"
            environment = {
                **{f"FERRY_{names[i]}_ADDRESS": local(self._ports[i]) for i in range(3)},
                "FERRY_JOB_QUEUE_SIZE": str(max(sizes, default=1000)),
                "FERRY_WORK_DIR": str(own / "work"),
                "LOG_LOCATION": str(own / "logs"),
                **self._settings,
            }
            self._run([ferry_command(), role, *common], environment, own)
        self._wait_for("/ping")
        self.register_all()
