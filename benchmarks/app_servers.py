"""The servers that take no archives: each runs its file of `apps/` in an environment of its own."""

import base64
import json
from abc import abstractmethod
from pathlib import Path

from benchmarks.servers import Job, Server, json_answer

APPS = Path(__file__).parent / "apps"


class AppServer(Server):
    """A server whose model is written in Python against its own library."""

    requirements: tuple[str, ...]
    _stops_as_group = False
    _route = "/"
    _health_route = "/"

    def __init__(self, python: Path, job: Job) -> None:
        super().__init__(job)
        self._python = python

    @property
    def url(self) -> str:
        return f"{self._address(0)}{self._route}"

    @property
    def _health_url(self) -> str:
        return f"{self._address(0)}{self._health_route}"

    @abstractmethod
    def _arguments(self) -> list[str]:
        """Returns the arguments of Python, in the folder of the apps."""

    def _command(self, folder: Path) -> list[str]:
        del folder
        return [str(self._python), *self._arguments()]

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            "PYTHONPATH": str(APPS),
            "BENCH_FOLDER": str(folder),
            "BENCH_PORT": str(self._ports[0]),
            "BENCH_WEIGHTS": str(self._job.weights or ""),
            "BENCH_BATCH_SIZE": str(self._job.batch_size),
            "BENCH_DELAY_MS": str(self._job.max_batch_delay_ms),
            # The users of a benchmark do not want to be counted.
            "RAY_USAGE_STATS_ENABLED": "0",
            "BENTOML_DO_NOT_TRACK": "True",
        }


class Mosec(AppServer):
    name = "mosec"
    version = "0.9.8"
    requirements = (f"mosec=={version}",)
    _route = "/inference"

    def _arguments(self) -> list[str]:
        return [
            *(str(APPS / "mosec_app.py"), "--address", "127.0.0.1", "--port", str(self._ports[0])),
            *("--timeout", "120000"),
        ]


class LitServe(AppServer):
    name = "LitServe"
    version = "0.2.19"
    requirements = (f"litserve=={version}",)
    _route = "/predict"
    _health_route = "/health"

    def _arguments(self) -> list[str]:
        return [str(APPS / "litserve_app.py")]


class BentoML(AppServer):
    name = "BentoML"
    version = "1.4.39"
    requirements = (f"bentoml=={version}",)
    content_type = "application/json"
    _route = "/predict"
    _health_route = "/readyz"

    def _arguments(self) -> list[str]:
        port = str(self._ports[0])
        where = ["--working-dir", str(APPS), "--host", "127.0.0.1", "--port", port]
        return ["-m", "bentoml", "serve", "bentoml_app:Model", *where]

    def packed(self, body: bytes) -> bytes:
        is_text = self._job.weights is None
        text = body.decode() if is_text else base64.b64encode(body).decode()
        return json.dumps({"bodies": [text]}).encode()

    def unpacked(self, answer: bytes) -> bytes:
        return str(json_answer(answer)[0]).encode()


class RayServe(AppServer):
    name = "Ray Serve"
    version = "2.60.0"
    requirements = (f"ray[serve]=={version}",)
    _health_route = "/-/healthz"

    def _arguments(self) -> list[str]:
        return [str(APPS / "rayserve_app.py")]


APP_SERVERS: dict[str, type[AppServer]] = {
    "mosec": Mosec,
    "litserve": LitServe,
    "bentoml": BentoML,
    "rayserve": RayServe,
}
