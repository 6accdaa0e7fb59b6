"""The image `server`, built from a copy of the repository, and containers of it."""

import contextlib
import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

from tests.compose.stack import BUILD_S, COMMAND_S, HTTP_S, SMALL_WORKER, copy_repository, run_in
from tests.e2e.archives import make_archive
from tests.ports import free_ports

# Always the same, so that a second run finds the layers of the first one.
IMAGE = "ferry-compose-test-server"
NAME_IN_DOCS, CONTAINER_IN_DOCS = "torchferry-server", "ferry"
# Bytes of a body, or twice an instance; `hold` ends when a file is made in the container.
HANDLER = """
import time
from pathlib import Path

def answer(row):
    if not isinstance(row, dict):
        return 2 * row
    return len(row.get("body", row.get("data")))

def handle(data, context):
    if data and isinstance(data[0], dict) and bytes(data[0].get("body", b"")) == b"hold":
        Path("/tmp/holding").touch()
        while not Path("/tmp/go").exists():
            time.sleep(0.01)
    return data and [answer(row) for row in data]
"""


class Running:
    """One container of the image."""

    def __init__(self, image: "Image", name: str, port: int) -> None:
        self.image = image
        self.name = name
        self.port = port

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False
            url = f"http://127.0.0.1:{self.port}/{path}"
            return session.request(method, url, timeout=HTTP_S, **options)

    def answers(self, path: str) -> bool:
        with contextlib.suppress(requests.ConnectionError):
            return self.ask("GET", path).status_code == 200
        return False

    def execute(self, *words: str) -> str:
        return self.image.run(["docker", "exec", self.name, *words])

    def logs(self) -> str:
        done = subprocess.run(
            ["docker", "logs", self.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
        return done.stdout

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.image.run(["docker", "inspect", self.name]))[0]
        return dict(found["State"])


class Image:
    """Runs the image in a folder that is a checkout with a model store beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        copy_repository(self.folder)
        self.store = self.folder / "model-store"
        self.store.mkdir()
        made = make_archive(self.store, "mnist", {"handler.py": HANDLER})
        (self.store / made).rename(self.store / "mnist.mar")

    def run(self, words: list[str], timeout_s: float = COMMAND_S) -> str:
        """Runs the command in the checkout; asserts that it succeeds; returns what it prints."""
        return run_in(self.folder, words, SMALL_WORKER, timeout_s)

    def paste(self, text: str, timeout_s: float = COMMAND_S) -> str:
        """Runs a block of the documentation, with a name and ports of its own."""
        port = free_ports(3)
        for offset in range(3):
            for place in ("localhost", "127.0.0.1"):
                text = text.replace(f"{place}:{8080 + offset}", f"{place}:{port + offset}")
        name = f"{IMAGE}-{uuid.uuid4().hex[:8]}"
        # Its name stands behind a flag or a verb of Docker's.
        text = re.sub(
            rf"(--name|exec|stop|--force) {CONTAINER_IN_DOCS}\b(?!-)", rf"\1 {name}", text
        )
        try:
            script = text.replace(NAME_IN_DOCS, IMAGE)
            return self.run(["bash", "-euo", "pipefail", "-c", script], timeout_s)
        finally:
            _remove(name)

    def build(self, text: str) -> None:
        """Builds it as the documentation says."""
        self.paste(text, BUILD_S)

    @contextlib.contextmanager
    def started(
        self, *words: str, options: tuple[str, ...] = (), port: int = 8080
    ) -> Iterator[Running]:
        """Runs a container for the length of a with block; `port` is the one that is published."""
        running = Running(self, f"{IMAGE}-{uuid.uuid4().hex[:8]}", free_ports(1))
        publish = ("--publish", f"127.0.0.1:{running.port}:{port}")
        try:
            self.run(
                ["docker", "run", "-d", "--name", running.name, *publish, *options, IMAGE, *words]
            )
            yield running
        finally:
            _remove(running.name)

    def added_bytes(self, base: str) -> int:
        sizes = [
            int(self.run(["docker", "image", "inspect", "-f", "{{.Size}}", name]))
            for name in (IMAGE, base)
        ]
        return sizes[0] - sizes[1]


def _remove(name: str) -> None:
    subprocess.run(
        ["docker", "rm", "--force", "--volumes", name],
        capture_output=True,
        check=False,
        timeout=COMMAND_S,
    )
