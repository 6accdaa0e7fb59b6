"""A stand-in server that gives prepared answers, in order, and keeps what it was asked."""

import json
from collections import deque
from typing import Any

from tests.http_server import GivenAnswer, StandIn

JOB_ID = "0" * 31 + "a"
JOB = {
    "id": JOB_ID,
    "model": "m",
    "version": "1.0",
    "status": "queued",
    "created_at": "2026-11-25T20:00:00.125Z",
    "expires_at": "2026-11-26T20:00:00.125Z",
    "attempts": 0,
    "position": 3,
}
# The connection ends without an answer.
LOST = None


def answer(status: int, content: Any = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, body


def refusal(status: int, kind: str = "E", **headers: str) -> tuple[int, dict[str, str], bytes]:
    return answer(status, {"code": status, "type": kind, "message": "No."}, **headers)


class AnsweringServer(StandIn):
    def __init__(self) -> None:
        self.answers: deque[GivenAnswer] = deque()
        super().__init__(lambda *_: self.answers.popleft())

    def will(self, *answers: GivenAnswer) -> None:
        self.answers.extend(answers)

    def methods(self) -> list[str]:
        return [f"{method} {path}" for method, path, _, _ in self.asked]
