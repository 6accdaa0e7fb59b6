"""The servers of model archives: TorchServe and torchferry."""

import importlib.metadata
import shutil
import time
from pathlib import Path

from benchmarks.measuring.processors import by_role
from benchmarks.measuring.records import OURS, commit_of
from benchmarks.servers.server import Job, Server, ferry_addresses, ferry_command
from benchmarks.servers.torchserve_env import TORCHSERVE_VERSION, write_captum

WORK_DIR = "work"
WARNINGS_ONLY = Path(__file__).with_name("torchserve_warnings_only.xml")


class ArchiveServer(Server):
    """A server that registers the archives in its model store."""

    def url_of(self, model_name: str) -> str:
        return f"{self._address(0)}/predictions/{model_name}"

    @property
    def _health_url(self) -> str:
        return f"{self._address(0)}/ping"

    def _archive(self, job: Job) -> Path:
        return job.archive

    def _parameters(self, job: Job) -> dict[str, str | int]:
        return {
            "url": f"{job.model_name}.mar",
            "batch_size": job.batch_size,
            "max_batch_delay": job.max_batch_delay_ms,
            "initial_workers": job.workers,
            "synchronous": "true",
        }

    def _store(self, folder: Path) -> str:
        store = folder / "store"
        store.mkdir()
        for job in self._jobs:
            archive = self._archive(job)
            copy = shutil.copytree if archive.is_dir() else shutil.copy
            copy(archive, store / f"{job.model_name}.mar")
        return str(store)

    def load_anew(self, job: Job, body: bytes) -> float:
        """Registers a registered model anew; returns the seconds until it has answered once.

        Raises:
            BenchmarkError: it was refused, or answered with an error.
        """
        self._client.delete(f"{self._address(1)}/models/{job.model_name}").raise_for_status()
        self._forget_files()
        started_s = time.monotonic()
        self._register_one(job)
        self.ask(job.model_name, body)
        return time.monotonic() - started_s

    def _forget_files(self) -> None:
        """Deletes what is left of unregistered models' archives; TorchServe does so by itself."""

    def _register(self) -> None:
        for job in self._jobs:
            self._register_one(job)

    def _register_one(self, job: Job) -> None:
        reply = self._client.post(f"{self._address(1)}/models", params=self._parameters(job))
        if not reply.is_success:
            raise self._failure(f"refused the model: {reply.status_code} {reply.text}")


class TorchServe(ArchiveServer):
    """TorchServe with what a comparison needs: model API on, tokens and Prometheus off.

    As installed it logs each request several times; `is_quiet` leaves it only its warnings.
    """

    name = "TorchServe"
    version = TORCHSERVE_VERSION
    # Its launcher dies of SIGTERM without passing it on to Java.
    _stops_as_group = True

    def __init__(self, python: Path, *jobs: Job, is_quiet: bool = False) -> None:
        super().__init__(*jobs)
        self._python = python
        self._is_quiet = is_quiet

    def _command(self, folder: Path) -> list[str]:
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
            "job_queue_size": max(job.job_queue_size for job in self._jobs),
        }
        config = folder / "config.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        store = self._store(folder)
        return [
            *(str(self._python), "-m", "ts.model_server", "--start", "--foreground", "--ncs"),
            *("--model-store", store, "--ts-config", str(config)),
            *(("--log-config", str(WARNINGS_ONLY)) if self._is_quiet else ()),
        ]

    def _environment(self, folder: Path) -> dict[str, str]:
        write_captum(folder / "modules")
        # TEMP: Java's sockets and unpacked models; TMPDIR: the launcher's pid file, because of
        # which it would refuse to start beside another TorchServe.
        names = ("TEMP", "TMPDIR", "LOG_LOCATION", "METRICS_LOCATION")
        return dict.fromkeys(names, str(folder)) | {"PYTHONPATH": str(folder / "modules")}


class Torchferry(ArchiveServer):
    """`ferry up`: embedded Redis, one ingress, one node.

    With a `tree`, the code is that of another working tree, on the same interpreter and packages.
    """

    name = OURS
    # The embedded Redis must outlive the workers' goodbye.
    _stops_as_group = False

    def __init__(self, *jobs: Job, tree: Path | None = None) -> None:
        super().__init__(*jobs)
        self._tree = tree
        self.version = importlib.metadata.version("torchferry")
        if tree is not None:
            self.name, self.version = f"{OURS} before", commit_of(tree)

    @property
    def metrics_url(self) -> str:
        return f"{self._address(2)}/metrics"

    def processes(self) -> dict[str, list[int]]:
        return by_role(self.pid)

    def _archive(self, job: Job) -> Path:
        return job.own_archive or job.archive

    def _parameters(self, job: Job) -> dict[str, str | int]:
        return super()._parameters(job) | job.own_parameters

    def _command(self, folder: Path) -> list[str]:
        return [ferry_command(), "up", "--model-store", self._store(folder)]

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            **ferry_addresses(self._ports),
            **({"PYTHONPATH": str(self._tree)} if self._tree else {}),
            "FERRY_JOB_QUEUE_SIZE": str(max(job.job_queue_size for job in self._jobs)),
            "FERRY_WORK_DIR": str(folder / WORK_DIR),
            "FERRY_CONFIG_SNAPSHOTS": "false",
        }

    def _forget_files(self) -> None:
        if self._folder is not None:
            # Running workers keep the files that they have mapped.
            shutil.rmtree(Path(self._folder.name, WORK_DIR))
