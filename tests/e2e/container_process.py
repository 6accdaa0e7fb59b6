"""The entry point of the image `server`, run as a process, and what the image has beside it."""

import os
from pathlib import Path
from typing import Any

import requests

from tests.e2e.ferry_process import FERRY, FerryProcess
from tests.ports import free_ports

DEPLOY = Path(__file__).parents[2] / "deploy"
STORE = "/home/model-server/model-store"
DOUBLING = {"handler.py": "def handle(data, context):\n    return data and [2 * x for x in data]\n"}
ECHO = {
    "handler.py": "def handle(data, context):\n"
    "    return data and [bytes(row['body']).decode() for row in data]\n"
}


class Container:
    """Runs the image's entry point, with a folder for what the image or a platform puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(3)
        self.store = folder / "model-store"
        self.store.mkdir()
        self.config = folder / "config.properties"
        self.environment = {"TS_CONFIG_FILE": str(self.config)}
        self.process: FerryProcess | None = None
        self.configure()

    def configure(self, more: str = "") -> None:
        """Writes the image's own file, with the store and the ports of this test."""
        text = (DEPLOY / "docker" / "config.properties").read_text().replace(STORE, str(self.store))
        for offset in range(3):
            text = text.replace(f":{8080 + offset}", f":{self.port + offset}")
        self.config.write_text(text + more)

    def start(self, *command: str, environment: dict[str, str] | None = None) -> FerryProcess:
        # `torchserve` is a script in the image.
        given = {**self.environment, "PATH": f"{self._commands()}:{os.environ['PATH']}"}
        self.process = FerryProcess(
            self.folder, ["container", *command], environment={**given, **(environment or {})}
        )
        return self.process

    def wait_started(self) -> None:
        assert self.process is not None
        self.process.wait_for_line("Model server started.")

    def ask(self, method: str, path: str, offset: int = 0, **options: Any) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False
            url = f"http://127.0.0.1:{self.port + offset}/{path}"
            return session.request(method, url, timeout=60, **options)

    def describe(self, model: str, offset: int = 1) -> dict[str, Any]:
        return dict(self.ask("GET", f"models/{model}", offset).json()[0])

    def _commands(self) -> Path:
        folder = self.folder / "bin"
        if not folder.exists():
            folder.mkdir()
            image = DEPLOY / "docker"
            for name in ("torchserve", "torch-model-archiver"):
                (folder / name).symlink_to(image / name)
            (folder / "ferry").symlink_to(FERRY)
        return folder
