"""A proxy between the parts and Redis that misbehaves on command, with toxiproxy's verbs.

Runs on an event loop in a thread of its own, so that blocking clients can be tested. Connections
from before a command are affected, too.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

CHUNK_BYTES = 65_536


class ChaosProxy:
    """Listens on a unix socket; forwards to another one, or to a port of this machine."""

    def __init__(self, path: Path, target: Path | int, seed: int = 0) -> None:
        self.path = path
        self.target = target
        self.url = f"unix://{path}"
        self.connections = 0
        self.cuts = 0
        self._cut_at: Callable[[int], int] | None = None
        self._skip = 0
        self._latency_s = 0.0
        self._reset_share = 0.0
        self._slice_bytes = 0
        self._is_down = False
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # --- verbs

    def cut_next(self, at: int, *, after: int = 0) -> None:
        """Cuts the next reply but `after` before byte `at` (-1: the last one), and resets."""
        self._skip = after
        self._cut_at = lambda length: max(0, length + at if at < 0 else min(at, length - 1))

    def heal(self) -> None:
        """Forwards everything again."""
        self._cut_at, self._skip = None, 0
        self._latency_s, self._reset_share, self._slice_bytes = 0.0, 0.0, 0
        self._is_down = False

    def slow(self, latency_s: float, *, reset_share: float = 0.0, slice_bytes: int = 0) -> None:
        """Delays each reply, loses this share of them, and sends them in slices of this size."""
        self._latency_s, self._reset_share = latency_s, reset_share
        self._slice_bytes = slice_bytes

    def go_down(self) -> None:
        """Resets every connection, and each new one."""
        self._is_down = True
        self.drop()

    def retarget(self, target: Path | int) -> None:
        """Leads to another server from now on; resets connections to the former one."""
        self.target = target
        self.drop()

    def drop(self) -> None:
        """Resets every connection; new ones work."""
        self._run(self._drop())

    # --- the loop's side

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def _drop(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _close(self) -> None:
        self._is_down = True
        # No more are accepted; one that was in this turn of the loop joins the server first, or
        # asyncio would leave its socket open.
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        self._server.close()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._drop()
            await asyncio.wait(tasks, timeout=0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._is_down:
            _reset(writer)
            return
        try:
            if isinstance(self.target, int):
                server = await asyncio.open_connection("127.0.0.1", self.target)
            else:
                server = await asyncio.open_unix_connection(str(self.target))
        except OSError:
            _reset(writer)
            return
        both = {writer, server[1]}
        self._writers |= both
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, server[1]))
                group.create_task(self._answer(server[0], writer))
        except* OSError:
            pass
        finally:
            self._writers -= both
            for one in both:
                _reset(one)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Late replies are on their way at the same time, as on a long line.
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver(line, writer))
            while chunk := await reader.read(CHUNK_BYTES):
                late_s = self._latency_s * self._random.uniform(0.5, 1.5)
                line.put_nowait((self._loop.time() + late_s, chunk))
            raise ConnectionResetError

    async def _deliver(
        self, line: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, chunk = await line.get()
            if self._cut_at is not None:
                if self._skip == 0:
                    at, self._cut_at = self._cut_at(len(chunk)), None
                    self.cuts += 1
                    writer.write(chunk[:at])
                    await writer.drain()
                    raise ConnectionResetError
                self._skip -= 1
            if due > self._loop.time():
                await asyncio.sleep(due - self._loop.time())
            if self._random.random() < self._reset_share:
                self.cuts += 1
                raise ConnectionResetError
            size = self._slice_bytes or len(chunk)
            for start in range(0, len(chunk), size):
                writer.write(chunk[start : start + size])
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends the connection as when the other machine is gone: no goodbye."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # What was written goes out first: a cut reply is one that arrived in part.
    writer.close()
