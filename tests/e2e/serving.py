"""`ferry serve` as a test runs it: on ports of its own, with its output and its answers at hand."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.e2e.ferry_process import FerryProcess
from tests.ports import free_ports
from tests.support import eventually

# A model without settings, and with a module beside it.
TAGGING = "import helper\n\ndef predict(batch):\n    return ['{}'] * len(batch)\n"


class Serving:
    """One `ferry serve` with these targets and options."""

    def __init__(
        self, folder: Path, *arguments: str | Path, port: int | None = None, **environment: str
    ) -> None:
        self.port = port or free_ports(3)
        self.url = f"http://localhost:{self.port}"
        words = ["serve", *map(str, arguments), "--port", str(self.port)]
        self.process = FerryProcess(folder, words, environment=environment)
        self.http = requests.Session()
        self.http.trust_env = False
        self.read_chars = 0

    def wait_started(self) -> None:
        """Waits until all models are announced."""
        self.process.wait_for_line("Ctrl-C ends.")

    def output(self) -> str:
        return self.process.log_path.read_text()

    def predict(self, model: str, body: bytes, **options: Any) -> requests.Response:
        return self.http.post(f"{self.url}/predictions/{model}", data=body, timeout=30, **options)

    def describe(self, model: str) -> list[dict]:
        """Returns what the management API tells of all versions."""
        url = f"http://localhost:{self.port + 1}/models/{model}/all"
        return self.http.get(url, timeout=30).json()


def save(path: Path, text: str, *, by_rename: bool = False) -> None:
    """Saves as editors do: in place, or with another file that takes the place."""
    if by_rename:
        beside = path.with_suffix(".tmp")
        beside.write_text(text)
        beside.replace(path)
    else:
        path.write_text(text)


def wait_for_lines(serving: Serving, *texts: str) -> None:
    """Waits until each of these is in the output, behind where the last wait has ended."""
    for text in texts:
        assert eventually(lambda text=text: text in serving.output()[serving.read_chars :], 15)
        serving.read_chars = serving.output().index(text, serving.read_chars) + len(text)


def save_and_hear(load: "Load", path: Path, tag: str, *, by_rename: bool = False) -> float:
    """Saves a model that answers with this tag; returns after how many seconds it was heard."""
    save(path, TAGGING.format(tag), by_rename=by_rename)
    saved_s = time.monotonic()
    return eventually(lambda: load.heard.get(tag.encode()), 15) - saved_s


@dataclass
class Load:
    """Clients that ask one model at a steady rate, and note what they hear."""

    serving: Serving
    model: str
    clients: int = 8
    per_second: int = 200
    failures: list[str] = field(default_factory=list)
    # Answer -> when it was heard first.
    heard: dict[bytes, float] = field(default_factory=dict)
    answers: int = 0
    _is_over: bool = False

    @contextlib.contextmanager
    def going(self) -> Iterator["Load"]:
        threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._is_over = True
            for thread in threads:
                thread.join()

    def _ask(self) -> None:
        due = time.monotonic()
        with requests.Session() as session:
            session.trust_env = False
            while not self._is_over:
                try:
                    url = f"{self.serving.url}/predictions/{self.model}"
                    answer = session.post(url, data=b"1", timeout=30)
                    if answer.status_code != 200:
                        self.failures.append(f"{answer.status_code} {answer.text}")
                    self.heard.setdefault(answer.content, time.monotonic())
                    self.answers += 1
                except requests.RequestException as error:
                    self.failures.append(repr(error))
                due += self.clients / self.per_second
                time.sleep(max(0.0, due - time.monotonic()))
