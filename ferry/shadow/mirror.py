"""Sends copies of live requests to the new server, in the background, and compares."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from ferry.shadow.comparison import Answer
from ferry.shadow.recording import Request
from ferry.shadow.result import Result
from ferry.shadow.target import Target

# Of all copies together. What is more is not compared, and takes no memory from the clients.
MOST_BYTES = 256 * 1024 * 1024

Piece = bytes | bytearray


@dataclass(slots=True)
class Copy:
    """A request and the old server's answer to it, as far as they have come."""

    number: int
    method: str
    path: str
    headers: Sequence[tuple[str, str]]
    body: list[Piece] = field(default_factory=list)
    status: int = 0
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    answer_body: list[Piece] = field(default_factory=list)
    latency_s: float = 0.0
    size_bytes: int = 0
    is_too_large: bool = False

    def request(self) -> Request:
        """Returns the request as recordings hold it."""
        return Request(self.number, self.method, self.path, self.headers, b"".join(self.body))

    def answer(self) -> Answer:
        """Returns the old server's answer, uncompressed if that can be."""
        raw = b"".join(self.answer_body)
        headers = httpx.Headers(self.answer_headers)
        body = raw
        with contextlib.suppress(httpx.DecodingError):
            body = httpx.Response(self.status, headers=headers, content=raw).content
        return Answer(self.status, headers.get("content-type", ""), body, self.latency_s)


class Mirror:
    """Decides which requests are copied, and compares their answers. Lives on one event loop.

    Args:
        new: the new server.
        result: where comparisons are added.
        share: how many of all requests are copied, from 0 to 1.
        most_open: how many copies there may be at a time; what is more is only counted.
        record: is given each copied request, in a thread.
    """

    def __init__(
        self,
        new: Target,
        result: Result,
        *,
        share: float,
        most_open: int,
        record: Callable[[Request], None] | None = None,
    ) -> None:
        self._new = new
        self._result = result
        self._share = share
        self._most_open = most_open
        self._record = record
        self._open = self._held_bytes = self._count = 0
        self._whole: asyncio.Queue[Copy] = asyncio.Queue()

    def begin(self, method: str, path: str, headers: Sequence[tuple[str, str]]) -> Copy | None:
        """Returns a copy to fill with this request; None if it is not to be compared."""
        self._count += 1
        if random.random() >= self._share:  # noqa: S311 - a sample
            return None
        if self._open >= self._most_open:
            self._result.uncompared["more than --queue at a time"] += 1
            return None
        self._open += 1
        return Copy(self._count, method, path, headers)

    def keep(self, copy: Copy, place: list[Piece], piece: Piece) -> None:
        """Adds a piece of a body to its place in the copy, while there is room."""
        copy.is_too_large |= self._held_bytes + len(piece) > MOST_BYTES
        if not copy.is_too_large:
            place.append(piece)
            copy.size_bytes += len(piece)
            self._held_bytes += len(piece)

    def end(self, copy: Copy, lost: str) -> None:
        """Has a copy compared; or lets go of one that is not whole, for the reason `lost`."""
        lost = lost or ("too large" if copy.is_too_large else "")
        if not lost:
            self._whole.put_nowait(copy)
            return
        self._result.uncompared[lost] += 1
        self._release(copy)

    async def run(self) -> None:
        """Compares copies, one after the other, until it is cancelled."""
        while True:
            copy = await self._whole.get()
            try:
                await self._compare(copy)
            except Exception as error:  # the next ones are compared whatever this one holds
                self._result.uncompared[f"{type(error).__name__} while comparing"] += 1
            self._release(copy)
            self._whole.task_done()

    async def drain(self) -> None:
        """Waits until all copies are compared."""
        await self._whole.join()

    def count_rest(self) -> None:
        """Counts the copies that are still there at the end."""
        if self._open:
            self._result.uncompared["the end came first"] += self._open

    async def _compare(self, copy: Copy) -> None:
        request = copy.request()
        if self._record is not None:
            await asyncio.to_thread(self._record, request)
        new = await self._new.send(request)
        old = copy.answer()
        # In a thread: while it computes, clients are served.
        compared = await asyncio.to_thread(self._result.compare, old, new)
        latencies_s = (old.latency_s, new.latency_s)
        self._result.add(request.label, copy.number, latencies_s, compared)

    def _release(self, copy: Copy) -> None:
        self._open -= 1
        self._held_bytes -= copy.size_bytes
