"""HTTP clients that hold their connections open, so that a test decides when a request leaves."""

import contextlib
import http.client
import select
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

import pytest

from tests.e2e.ferry_process import FerryServer

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


@dataclass
class Traffic:
    """Innocent requests that go on beside whatever a test does."""

    statuses: list[int] = field(default_factory=list)
    mix_ups: list[str] = field(default_factory=list)


@contextlib.contextmanager
def innocent_traffic(server: FerryServer, model_name: str, clients: int = 2) -> Iterator[Traffic]:
    """Asks this echo model all the while; at the end, asserts that each client got its answer."""
    traffic = Traffic()
    is_over = threading.Event()
    has_begun = threading.Semaphore(0)

    def ask(client: int) -> None:
        with Clients(server.inference, 1) as connection:
            number = 0
            while not is_over.is_set() or number < 2:
                body = f"innocent {client} {number}"
                exchange = connection.ask(f"/predictions/{model_name}", [body])
                traffic.statuses += exchange.statuses
                if exchange.bodies != [body]:
                    traffic.mix_ups.append(f"{body}: {exchange.bodies}")
                number += 1
                has_begun.release()
                is_over.wait(0.005)

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    try:
        assert has_begun.acquire(timeout=TIMEOUT_S)
        yield traffic
    finally:
        is_over.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert traffic.statuses
    assert set(traffic.statuses) == {200}
    assert traffic.mix_ups == []
