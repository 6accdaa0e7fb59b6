"""A stand-in server that gives prepared answers, in order, and keeps what it was asked."""

import json
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
LOST = (0, {}, b"")


def answer(status: int, content: Any = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, body


def refusal(status: int, kind: str = "E", **headers: str) -> tuple[int, dict[str, str], bytes]:
    return answer(status, {"code": status, "type": kind, "message": "No."}, **headers)


class AnsweringServer:
    def __init__(self) -> None:
        self.answers: deque[tuple[int, dict[str, str], bytes]] = deque()
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append((self.command, self.path, headers, body))
                status, headers, content = outer.answers.popleft()
                self.close_connection = True
                if status:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            do_GET = do_POST = do_DELETE = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def will(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        self.answers.extend(answers)

    def methods(self) -> list[str]:
        return [f"{method} {path}" for method, path, _, _ in self.asked]
