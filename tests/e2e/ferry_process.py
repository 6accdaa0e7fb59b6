"""Runs `ferry` as a user does, and sees that nothing of it stays behind."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import requests

from tests.ports import free_ports
from tests.support import came_true
from tests.timing import assert_within
from tests.topology.whole_suite import IS_ON_CLUSTER, lend_cluster

FERRY = Path(sys.executable).parent / "ferry"
MARK = "FERRY_E2E_MARK"
START_TIMEOUT_S = 120.0  # a machine that others keep busy imports torch slowly
STOP_TIMEOUT_S = 8.0
HTTP_TIMEOUT_S = 60.0
LOG_TAIL_BYTES = 8000


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def processes_of(mark: str) -> list[str]:
    """Returns id and command line of every living process that inherited this mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            if is_alive and process.environ().get(MARK) == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


@dataclass(frozen=True)
class Stopped:
    exit_code: int
    seconds: float
    left_behind: list[str]


class FerryProcess:
    """One `ferry` command in the foreground of a session of its own, as in a terminal."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        program: str | Path = FERRY,
        environment: Mapping[str, str] | None = None,
        terminal: int | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log_path = folder / f"{Path(program).name}-{uuid.uuid4().hex[:6]}.log"
        self.mark = uuid.uuid4().hex
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("FERRY_") and name != "REDIS_URL"
        }
        own = {
            "FERRY_INGRESS_PROCESSES": "1",  # whatever the machine has
            "FERRY_WORK_DIR": str(folder / "work"),
            "LOG_LOCATION": str(folder / "logs"),
            "TMPDIR": str(temporary),
            MARK: self.mark,
        }
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [str(program), *arguments],
                env={**inherited, **own, **(environment or {})},
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=log,
                stderr=log,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=None if terminal is None else _take_terminal,  # noqa: PLW1509
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def section(self) -> tuple[str, str]:
        """Returns name and end of the log, as a section of a report."""
        return f"log of {self.log_path.name}", self.log()

    def wait_for_line(self, text: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the text is in the output; kills the process if it does not come."""
        came_true(lambda: self.has_ended() or text in self._whole_log(), timeout_s)
        if text not in self._whole_log():
            self.kill()
            raise AssertionError(f"{text!r} did not come within {timeout_s} s:\n{self.log()}")

    def stop(self, number: int = signal.SIGINT) -> Stopped:
        """Sends this signal; returns what became of the process."""
        return self.stop_by(lambda: os.kill(self.pid, number))

    def stop_by(self, act: Callable[[], object]) -> Stopped:
        """Acts, and returns what became of the process; kills it some time after the limit."""
        started = time.monotonic()
        act()
        try:
            code = self._process.wait(STOP_TIMEOUT_S + 4)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        seconds = time.monotonic() - started
        left_behind = self.family()
        self.kill()
        return Stopped(code, seconds, left_behind)

    def stop_cleanly(self) -> None:
        """Asserts that Ctrl-C ends it with exit code 0, in time, and nothing stays behind."""
        stopped = self.stop()
        assert stopped.exit_code == 0, f"exit code {stopped.exit_code}:\n{self.log()}"
        assert_within(stopped.seconds, STOP_TIMEOUT_S)
        assert stopped.left_behind == [], f"left behind:\n{self.log()}"

    def family(self) -> list[str]:
        """Returns every living process that descends from this one, however it was detached."""
        return processes_of(self.mark)

    def kill(self) -> None:
        """Kills the process and all that descends from it."""
        for line in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        self._process.wait(10)

    def wake(self) -> None:
        """Lets the process and all that descends from it go on, if they were stopped."""
        for line in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGCONT)

    def has_ended(self) -> bool:
        """Returns whether the process is gone."""
        return self._process.poll() is not None

    def exit_code(self) -> int | None:
        """Returns the exit code; None while the process runs."""
        return self._process.poll()

    def _whole_log(self) -> str:
        return self.log_path.read_text(errors="replace")


class FerryServer:
    """`ferry up` on ports of its own, and its management API as methods."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        port_base: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port_base or free_ports(3)
        self.store = folder / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.inference = f"http://127.0.0.1:{self.port}"
        self.management = f"http://127.0.0.1:{self.port + 1}"
        self.metrics = f"http://127.0.0.1:{self.port + 2}"
        options = ["up", "--port-base", str(self.port), "--model-store", str(self.store)]
        if IS_ON_CLUSTER and "--redis-url" not in arguments:
            # The process comes after its environment.
            url = lend_cluster(lambda: self.process.has_ended())  # noqa: PLW0108
            environment = {"REDIS_URL": url, **(environment or {})}
        self.process = FerryProcess(folder, [*options, *arguments], environment=environment)
        self.http = requests.Session()
        self.http.trust_env = False

    def wait_started(self) -> None:
        self.process.wait_for_line("Model server started.")

    def logs(self) -> list[tuple[str, str]]:
        """Returns the end of each part's log, as sections of a report."""
        return [self.process.section()]

    def predict(self, path: str, body: bytes = b"", **options: Any) -> requests.Response:
        """Returns the answer to `POST /predictions/{path}` over a connection of its own."""
        url = f"{self.inference}/predictions/{path}"
        with requests.Session() as session:
            session.trust_env = False
            return session.post(url, data=body, timeout=HTTP_TIMEOUT_S, **options)

    def manage(self, method: str, path: str, **parameters: Any) -> requests.Response:
        """Returns the answer of the management API."""
        url = f"{self.management}/{path}"
        return self.http.request(method, url, params=parameters, timeout=HTTP_TIMEOUT_S * 2)

    def register(self, archive: str, **parameters: Any) -> requests.Response:
        """Registers the archive and waits for one worker, unless told otherwise; asserts 200."""
        query = {"url": archive, "initial_workers": 1, "synchronous": "true", **parameters}
        response = self.manage("POST", "models", **query)
        assert response.status_code == 200, response.text
        return response

    @contextlib.contextmanager
    def model(self, archive: str, model_name: str, **parameters: Any) -> Iterator[str]:
        """Registers the archive for the length of a with block."""
        self.register(archive, model_name=model_name, **parameters)
        try:
            yield model_name
        finally:
            self.manage("DELETE", f"models/{quote(model_name)}")

    @contextlib.contextmanager
    def cleaned_up(self, *paths: str) -> Iterator[None]:
        """Unregisters these models after the with block, whatever happened in it."""
        try:
            yield
        finally:
            for path in paths:
                self.manage("DELETE", f"models/{path}")

    def describe(self, model_name: str) -> dict[str, Any]:
        """Returns the default version's description."""
        response = self.manage("GET", f"models/{model_name}")
        assert response.status_code == 200, response.text
        document: dict[str, Any] = response.json()[0]
        return document

    def worker_pids(self, model_name: str) -> list[int]:
        """Returns the ready workers' process ids, as describe tells them."""
        workers = self.describe(model_name)["workers"]
        return [worker["pid"] for worker in workers if worker["status"] == "READY"]


@contextlib.contextmanager
def running(server: Any) -> Iterator[Any]:
    """Waits for the start, and asserts that Ctrl-C ends it cleanly, with nothing left behind."""
    try:
        server.wait_started()
        yield server
        server.process.stop_cleanly()
    finally:
        server.process.kill()


def ferry_server(
    folder: Path, *arguments: str, **options: Any
) -> contextlib.AbstractContextManager[FerryServer]:
    return running(FerryServer(folder, *arguments, **options))


# Starts a server of one store, and another one later.
Start = Callable[..., FerryServer]
