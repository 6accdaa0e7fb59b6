"""Sends a recording to both servers."""

import asyncio
from collections.abc import Callable, Iterator

from ferry.shadow.recording import Request
from ferry.shadow.result import Result
from ferry.shadow.target import Target


class Replay:
    """Sends each request to both, one after the other, so that they never compete for a machine.

    Of two successive requests, one goes to the old server first, and the other to the new one.
    """

    def __init__(
        self, old: Target, new: Target, result: Result, on_progress: Callable[[], object]
    ) -> None:
        self._old = old
        self._new = new
        self._result = result
        self._on_progress = on_progress

    async def run(self, requests: Iterator[Request], connections: int) -> None:
        """Sends all requests, so many at a time.

        Raises:
            Unreadable, OSError: the recording, or the file of a body, cannot be read.
        """
        async with self._old.client, self._new.client:
            await asyncio.gather(*(self._send(requests) for _ in range(connections)))

    async def _send(self, requests: Iterator[Request]) -> None:
        for request in requests:
            sides = (self._old, self._new) if request.number % 2 else (self._new, self._old)
            answers = {side: await side.send(request) for side in sides}
            old, new = answers[self._old], answers[self._new]
            self._result.add(
                request.label,
                request.number,
                (old.latency_s, new.latency_s),
                self._result.compare(old, new),
            )
            self._on_progress()
