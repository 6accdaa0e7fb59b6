"""HTTP clients that hold their connections open, so that a test decides when a request leaves."""

import http.client
import select
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import pytest

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
TIMEOUT_S = 60.0
NO_HEADERS: Mapping[str, str] = {}
# The delay of a model whose batches are to be full, which leave at once: on a busy machine requests
# that were sent together come apart.
TIME_TO_FILL_MS = 2000


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Exchange:
    """`sent_at[i]`, on the clock of `time.monotonic`, is when request i began to leave."""

    sent_at: list[float]
    answers: list[Answer]

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def bodies(self) -> list[str]:
        return [answer.body.decode() for answer in self.answers]


class Clients:
    """Connected clients; each sends at most one request at a time."""

    def __init__(self, address: str, count: int) -> None:
        parts = urlsplit(address)
        self._connections = [
            http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
            for _ in range(count)
        ]
        for connection in self._connections:
            connection.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    def send(
        self,
        path: str,
        bodies: Sequence[bytes | str],
        *,
        spacing_s: float = 0.0,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> list[float]:
        """Sends one request per client, the first ones first; returns when each began to leave."""
        sent_at: list[float] = []
        for number, body in enumerate(bodies):
            if number and spacing_s:
                time.sleep(max(0.0, sent_at[0] + number * spacing_s - time.monotonic()))
            content = body.encode() if isinstance(body, str) else body
            sent_at.append(time.monotonic())
            self._connections[number].request("POST", path, content, dict(headers))
        return sent_at

    def receive(self, count: int) -> list[Answer]:
        """Returns the first clients' answers."""
        answers = []
        for connection in self._connections[:count]:
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            answers.append(Answer(response.status, headers, response.read()))
        return answers

    def ask(
        self,
        path: str,
        bodies: Sequence[bytes | str],
        *,
        spacing_s: float = 0.0,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Exchange:
        """Sends one request per client, all before the first answer is read."""
        sent_at = self.send(path, bodies, spacing_s=spacing_s, headers=headers)
        return Exchange(sent_at, self.receive(len(bodies)))

    def unasked(self, wait_s: float) -> int:
        """Returns how many connections bring another byte, or their end, within this time."""
        sockets = [connection.sock for connection in self._connections if connection.sock]
        return len(select.select(sockets, [], [], wait_s)[0])
