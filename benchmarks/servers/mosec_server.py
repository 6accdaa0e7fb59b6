"""mosec, whose queue is in the memory of one process in Rust."""

from pathlib import Path

from benchmarks.servers.server import Job, Server

APP = Path(__file__).with_name("mosec_app.py")


class Mosec(Server):
    """It takes no archives: `mosec_app.py` has the models."""

    name = "mosec"
    version = "0.9.8"
    requirements = (f"mosec=={version}",)
    _stops_as_group = False

    def __init__(self, python: Path, *jobs: Job) -> None:
        super().__init__(*jobs)
        self._python = python

    def url_of(self, model_name: str) -> str:
        return f"{self._address(0)}/{model_name}"

    @property
    def _health_url(self) -> str:
        return self._address(0)

    def _command(self, folder: Path) -> list[str]:
        del folder
        address = ("--address", "127.0.0.1", "--port", str(self._ports[0]))
        return [str(self._python), "-P", str(APP), *address, "--timeout", "120000"]

    def _environment(self, folder: Path) -> dict[str, str]:
        del folder
        return {
            "BENCH_BATCH_SIZE": str(self._jobs[0].batch_size),
            "BENCH_DELAY_MS": str(self._jobs[0].max_batch_delay_ms),
        }
