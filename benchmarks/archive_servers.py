"""The servers of model archives: TorchServe and torchferry."""

import importlib.metadata
import shutil
from pathlib import Path

from benchmarks.servers import Job, Server, ferry_addresses, ferry_command
from benchmarks.torchserve_env import TORCHSERVE_VERSION, write_captum

WARNINGS_ONLY = Path(__file__).with_name("torchserve_warnings_only.xml")


class ArchiveServer(Server):
    """A server that registers the archive in its model store."""

    @property
    def url(self) -> str:
        return f"{self._address(0)}/predictions/{self._job.model_name}"

    @property
    def _health_url(self) -> str:
        return f"{self._address(0)}/ping"

    def _store(self, folder: Path, archive: Path) -> str:
        store = folder / "store"
        store.mkdir()
        shutil.copy(archive, store / f"{self._job.model_name}.mar")
        return str(store)

    def _register(self) -> None:
        parameters: dict[str, str | int] = {
            "url": f"{self._job.model_name}.mar",
            "batch_size": self._job.batch_size,
            "max_batch_delay": self._job.max_batch_delay_ms,
            "initial_workers": self._job.workers,
            "synchronous": "true",
        }
        reply = self._client.post(f"{self._address(1)}/models", params=parameters)
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

    def __init__(self, python: Path, job: Job, *, is_quiet: bool = False) -> None:
        super().__init__(job)
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
            "job_queue_size": self._job.job_queue_size,
        }
        config = folder / "config.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        store = self._store(folder, self._job.archive)
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
    """`ferry up`: embedded Redis, one ingress, one node."""

    name = "torchferry"
    # The embedded Redis must outlive the workers' goodbye.
    _stops_as_group = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.version = importlib.metadata.version("torchferry")

    def _command(self, folder: Path) -> list[str]:
        store = self._store(folder, self._job.own_archive)
        return [ferry_command(), "up", "--model-store", store]

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            **ferry_addresses(self._ports),
            "FERRY_JOB_QUEUE_SIZE": str(self._job.job_queue_size),
            "FERRY_WORK_DIR": str(folder / "work"),
            "FERRY_CONFIG_SNAPSHOTS": "false",
        }
