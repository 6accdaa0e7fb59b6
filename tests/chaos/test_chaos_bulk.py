"""F47: a batch whose feeder, worker, Redis, and whole server are killed in turns."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.chaos.promises import is_long
from tests.chaos.rig import kill
from tests.e2e.archives import make_archive
from tests.e2e.ferry_process import FerryServer
from tests.ports import free_ports
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

# Slow enough for a batch to be under way when the next part is killed.
HANDLER = """
import time
def handle(data, context):
    time.sleep(0.01)
    return [row["body"] for row in data] if data else []
"""
ENDED = {"completed", "failed", "expired", "cancelled"}


class Server:
    """`ferry up` on the same ports, folders and files again, after it was killed as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_ports(3)
        self._start()
        archive = make_archive(self.ferry.store, "echo", {"handler.py": HANDLER})
        self.ferry.register(archive, batch_size=16, max_batch_delay=5)

    def _start(self) -> None:
        data = str(self._folder / "data")
        self.ferry = FerryServer(self._folder, "--data-dir", data, port_base=self._port)
        self.ferry.wait_started()

    def kill_part(self, words: str) -> None:
        """Kills the process that has these words in its command line."""
        parts = psutil.Process(self.ferry.process.pid).children
        [part, *_] = eventually(
            lambda: [part for part in parts() if words in " ".join(part.cmdline())], 20
        )
        kill(part.pid)

    def kill_worker(self) -> None:
        [pid, *_] = eventually(
            lambda: [pid for pid in self.ferry.worker_pids("echo") if psutil.pid_exists(pid)], 20
        )
        kill(pid)

    def kill_all(self) -> None:
        self.ferry.process.kill()
        self._start()

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Returns the answer, once the server is there to give it."""

        def answered() -> Any:
            try:
                answer = self.ferry.http.request(
                    method, f"{self.ferry.management}/v1/{path}", timeout=20, **options
                )
            except requests.ConnectionError:
                return None
            return answer if answer.status_code < 500 else None

        return eventually(answered, 30)


@pytest.mark.timeout(600)
def test_f47_each_line_of_a_batch_once_whatever_is_killed(
    tmp_path: Path, record_promise: Callable[[str, str], None]
) -> None:
    count, turns = (100_000, 24) if is_long() else (8_000, 4)
    server = Server(tmp_path)
    try:
        # Given a batch under way
        lines = [
            {"custom_id": f"c{n}", "method": "POST", "url": "/predictions/echo", "body": n}
            for n in range(count)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        file = server.ask("POST", "files", data={"purpose": "batch"}, files={"file": text}).json()
        asked = {"input_file_id": file["id"], "endpoint": "/predictions"}
        batch_id = server.ask("POST", "batches", json=asked).json()["id"]

        def batch() -> dict[str, Any]:
            found: dict[str, Any] = server.ask("GET", f"batches/{batch_id}").json()
            return found

        # When one part after the other is killed, each when some more lines are done
        kills = itertools.cycle(
            [
                lambda: server.kill_part("ingress.bulk"),
                server.kill_worker,
                lambda: server.kill_part("-server"),
                server.kill_all,
            ]
        )
        killed = 0
        for turn, kill_next in zip(range(turns), kills, strict=False):
            # The second half is left, so that the batch goes on while the last part is killed.
            done = turn * count / (2 * turns)
            now = eventually(
                lambda done=done: (now := batch())["request_counts"]["completed"] >= done and now,
                60,
            )
            killed += now["status"] in {"validating", "in_progress"}
            kill_next()
        ended = eventually(lambda: (now := batch())["status"] in ENDED and now, 120)

        # Then each line is in the output, once
        output = server.ask("GET", f"files/{ended['output_file_id']}/content").text
        found = [json.loads(line) for line in output.splitlines()]
        numbers = sorted(line["response"]["body"] for line in found)
        lost, doubled = count - len(set(numbers)), len(numbers) - len(set(numbers))
        record_promise("F47", f"{killed} kills: {count} lines: {lost} lost, {doubled} doubled")
        assert killed == turns
        assert (ended["status"], lost, doubled) == ("completed", 0, 0)
        assert all(line["custom_id"] == f"c{line['response']['body']}" for line in found)
        assert ended["request_counts"] == {"total": count, "completed": count, "failed": 0}
    finally:
        server.ferry.process.kill()
