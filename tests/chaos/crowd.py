"""Clients in the background: an open loop that sends on time whatever comes back, and its log."""

import asyncio
import concurrent.futures
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

PATIENCE_S = float(os.environ.get("CHAOS_PATIENCE_S", "30"))


@dataclass
class Sent:
    """One request and what its client saw. Times are on the clock of `time.monotonic`.

    `status` is 0 while no answer has come; `fault` says why none can come any more.
    """

    body: str
    sent_at: float = 0.0
    answered_at: float = math.inf
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    answer: str = ""
    left_at: float | None = None
    fault: str = ""
    hang_up: Callable[[], None] = lambda: None

    @property
    def seconds(self) -> float:
        return self.answered_at - self.sent_at

    @property
    def reason(self) -> str:
        return self.headers.get("x-ferry-reason", "")


def for_seconds(seconds: float) -> None:
    """Lets the load go on for so long; never a wait for an event."""
    threading.Event().wait(seconds)


class Crowd:
    """Clients of one server; each request has a connection of its own."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = port
        self.log: list[Sent] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._pending: list[concurrent.futures.Future[Sent]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def send(self, model: str, bodies: Iterable[str], **options: Any) -> list[Sent]:
        """Sends the requests without waiting; their `Sent` fill up as the answers come."""
        batch = [Sent(body) for body in bodies]
        self.log += batch
        self._pending += [self._call(self._ask(model, sent, **options)) for sent in batch]
        return batch

    def ask(self, model: str, bodies: Iterable[str], **options: Any) -> list[Sent]:
        """Sends the requests at once and waits for their answers."""
        batch = self.send(model, bodies, **options)
        self.wait()
        return batch

    def leave(self, batch: list[Sent]) -> None:
        """Closes these clients' connections without waiting for an answer."""
        for sent in batch:
            sent.left_at = time.monotonic()
            self._loop.call_soon_threadsafe(sent.hang_up)

    def wait(self, timeout_s: float = PATIENCE_S + 5) -> list[Sent]:
        """Waits until every client has its answer, has left or has given up; returns the log."""
        pending, self._pending = self._pending, []
        concurrent.futures.wait(pending, timeout_s)
        return self.log

    @contextlib.contextmanager
    def flow(self, model: str, per_second: float, prefix: str, **options: Any) -> Iterator[None]:
        """Sends requests at this rate during the with block; waits for all of them at its end."""
        is_over = threading.Event()
        flowing = self._call(self._flow(model, 1 / per_second, prefix, is_over, options))
        try:
            yield
        finally:
            is_over.set()
            flowing.result(PATIENCE_S + 10)
            self.wait()

    def _call(self, coroutine: Any) -> "concurrent.futures.Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _flow(
        self, model: str, gap_s: float, prefix: str, is_over: threading.Event, options: Any
    ) -> None:
        tasks = []
        due = time.monotonic()
        while not is_over.is_set():
            sent = Sent(f"{prefix}{len(tasks)}")
            self.log.append(sent)
            tasks.append(asyncio.create_task(self._ask(model, sent, **options)))
            due += gap_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*tasks)

    async def _ask(
        self,
        model: str,
        sent: Sent,
        *,
        timeout_ms: int | None = None,
        padding: int = 0,
    ) -> Sent:
        writer: asyncio.StreamWriter | None = None
        sent.sent_at = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                sent.hang_up = writer.transport.abort
                writer.write(_request(model, sent.body.encode().ljust(padding), timeout_ms))
                if sent.left_at:  # before its connection was made
                    sent.hang_up()
                await _read_answer(reader, sent)
                sent.answered_at = time.monotonic()
        except TimeoutError:
            sent.fault = "no answer"
        except (OSError, asyncio.IncompleteReadError) as error:
            sent.fault = "" if sent.left_at else type(error).__name__
        finally:
            if writer is not None:
                writer.transport.abort()
        return sent

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _request(model: str, body: bytes, timeout_ms: int | None) -> bytes:
    deadline = f"X-Request-Timeout-Ms: {timeout_ms}\r\n" if timeout_ms else ""
    head = (
        f"POST /predictions/{model} HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Content-Length: {len(body)}\r\n{deadline}\r\n"
    )
    return head.encode() + body


async def _read_answer(reader: asyncio.StreamReader, sent: Sent) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    for line in filter(None, head[1:]):
        name, _, value = line.partition(":")
        sent.headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(sent.headers.get("content-length", "0")))
    sent.answer = body.decode(errors="replace")
    sent.status = int(head[0].split()[1])
