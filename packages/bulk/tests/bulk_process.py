"""Runs `ferry-bulk` beside a server, and asks it as a client does."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.ferry_process import FerryProcess
from tests.ports import free_ports
from tests.support import eventually

ENDED = {"completed", "failed", "expired", "cancelled"}


class BulkProcess:
    """`ferry-bulk` on a port of its own. It may be killed, and begins again there."""

    def __init__(
        self,
        folder: Path,
        server: str,
        *arguments: str,
        program: Sequence[str] = (sys.executable, "-m", "ferry_bulk.main"),
        **environment: str,
    ) -> None:
        self.port = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder / "bulk"
        self._arguments = ["--folder", str(self.folder), "--server", server, *arguments]
        self._environment = environment
        self._program, *self._words = program
        self._logs = folder
        self.http = httpx.Client(base_url=f"{self.url}/v1", trust_env=False, timeout=60)
        self.start()

    def start(self) -> None:
        words = [*self._words, "--listen", f"127.0.0.1:{self.port}", *self._arguments]
        self.process = FerryProcess(
            self._logs, words, program=self._program, environment=self._environment
        )
        self.process.wait_for_line("ferry-bulk listens")

    def stop(self) -> None:
        self.http.close()
        self.process.stop_cleanly()

    def upload(self, lines: Sequence[Any]) -> Any:
        """Uploads the lines, texts as they are; returns the file."""
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
        answer = self.http.post("/files", data={"purpose": "batch"}, files={"file": text.encode()})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def create_batch(self, lines: Sequence[Any], **more: Any) -> Any:
        asked = {"input_file_id": self.upload(lines)["id"], "endpoint": "/predictions", **more}
        answer = self.http.post("/batches", json=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def batch(self, batch_id: str) -> Any:
        return self.http.get(f"/batches/{batch_id}").json()

    def ended(self, batch_id: str, timeout_s: float = 30) -> Any:
        """Returns the batch, once it has ended."""
        return eventually(
            lambda: (now := self.batch(batch_id))["status"] in ENDED and now, timeout_s
        )

    def lines(self, file_id: str | None) -> list[Any]:
        if file_id is None:
            return []
        text = self.http.get(f"/files/{file_id}/content").text
        return [json.loads(line) for line in text.splitlines()]


def line(custom_id: str, body: Any, model: str = "echo", **more: Any) -> dict[str, Any]:
    asked = {"custom_id": custom_id, "method": "POST", "url": f"/predictions/{model}", "body": body}
    return asked | more
