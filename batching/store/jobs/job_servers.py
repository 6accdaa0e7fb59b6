"""Tells how the servers of jobs are: whether they have room, and keep what they are told."""

import asyncio
import time
from typing import NamedTuple

from batching.store.client_types import AsyncClient
from batching.store.clients import at
from batching.store.jobs.append_only import write_file

LOOK_S = 1.0  # between two questions how a server is
REFUSED_S = 60.0  # between two tries to have it write a file


class JobServer(NamedTuple):
    """Holds how a Redis was at a moment of the monotonic clock."""

    looked_s: float
    has_room: bool
    is_durable: bool


class JobServers:
    """Looks at each server once a second at most; a cluster has several, by hash tag."""

    def __init__(self, client: AsyncClient, memory_share: float, *, is_writing_file: bool) -> None:
        """Looks at none yet.

        Args:
            client: of all servers.
            memory_share: the part of `maxmemory` that may be used when there is room for jobs.
            is_writing_file: whether servers are to write an append-only file from the first job on.
        """
        self._client = client
        self._memory_share = memory_share
        self._is_writing_file = is_writing_file
        self._servers: dict[str, JobServer] = {}
        self._looking = asyncio.Lock()
        self._write_file_at_s = 0.0

    async def look(self, tag: str) -> JobServer:
        """Returns how the server of this tag is, as of the last second."""
        server = self._servers.get(tag)
        if server is None or server.looked_s + LOOK_S < time.monotonic():
            # Not each of the many that come at the same time asks.
            async with self._looking:
                server = self._servers.get(tag)
                if server is None or server.looked_s + LOOK_S < time.monotonic():
                    server = self._servers[tag] = await self._ask(tag)
        return server

    async def for_submit(self, tag: str) -> JobServer:
        """Returns as `look`; has the server write a file first, if it is to and has room."""
        server = await self.look(tag)
        if not self._is_writing_file or server.is_durable or not server.has_room:
            return server
        async with self._looking:
            server = self._servers.get(tag, server)
            if not server.is_durable and self._write_file_at_s <= time.monotonic():
                # A server that refuses is not asked for each job.
                self._write_file_at_s = time.monotonic() + REFUSED_S
                await write_file(self._client)
                server = self._servers[tag] = await self._ask(tag)
        return server

    async def _ask(self, tag: str) -> JobServer:
        info = await at(self._client, tag).info("memory", "persistence")
        limit_bytes = info.get("maxmemory", 0) * self._memory_share
        return JobServer(
            looked_s=time.monotonic(),
            has_room=not limit_bytes or info.get("used_memory", 0) < limit_bytes,
            is_durable=info.get("aof_enabled") == 1,
        )
