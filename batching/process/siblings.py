"""Connects the ingress processes that share a host's ports (ADR 0021)."""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from batching.process.daemon_thread import in_daemon_thread

VARIABLE = "FERRY_SIBLINGS"

# A scraper waits for all answers together.
_ANSWERS_S = 0.5
_LOOK_S = 0.02
_QUESTION, _ANSWER = b"?", b"!"


@dataclass(frozen=True, slots=True)
class Siblings:
    """Knows that this process is `number` of `count`, from 1 on; only these may read `folder`."""

    number: int = 1
    count: int = 1
    folder: Path = Path()

    @classmethod
    def from_environment(cls) -> Self:
        number, count, folder = json.loads(os.environ.get(VARIABLE, '[1, 1, ""]'))
        return cls(number, count, Path(folder))

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps([self.number, self.count, str(self.folder)])}

    @property
    def is_first(self) -> bool:
        """Returns whether this process does what one of the siblings does for all."""
        return self.number == 1

    @property
    def others(self) -> list[int]:
        return [number for number in range(1, self.count + 1) if number != self.number]

    async def listen(self, act: Callable[[], object]) -> asyncio.Server:
        """Runs `act` in a thread when a sibling asks, and answers when that has ended."""
        path = self.folder / f"{self.number}.sock"
        path.unlink(missing_ok=True)  # left by a predecessor that was killed

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                if await reader.read(1):  # else the sibling only asks whether this process runs
                    await in_daemon_thread(act)
                    writer.write(_ANSWER)

        return await asyncio.start_unix_server(answer, str(path))

    def ask(self) -> set[int]:
        """Returns the siblings that have acted, after half a second at most. Blocks."""
        ends_s = time.monotonic() + _ANSWERS_S
        answered = set()
        with self._connected() as connections:
            for connection in connections.values():
                connection.sendall(_QUESTION)
            for number, connection in connections.items():
                connection.settimeout(max(0.001, ends_s - time.monotonic()))
                with contextlib.suppress(OSError):
                    if connection.recv(1) == _ANSWER:
                        answered.add(number)
        return answered

    async def gone(self) -> None:
        while True:
            with self._connected() as connections:
                if not connections:
                    return
            await asyncio.sleep(_LOOK_S)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[dict[int, socket.socket]]:
        connections = {}
        with contextlib.ExitStack() as cleanup:
            for number in self.others:
                connection = cleanup.enter_context(socket.socket(socket.AF_UNIX))
                connection.settimeout(_ANSWERS_S)
                with contextlib.suppress(OSError):
                    connection.connect(f"{self.folder}/{number}.sock")
                    connections[number] = connection
            yield connections
