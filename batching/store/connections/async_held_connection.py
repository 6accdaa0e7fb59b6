"""A connection of one caller's own, on which commands that belong together travel together.

For the calls made for every batch. redis-py's `execute_command` takes a connection from the pool,
packs in Python, guards each write and each read by a timer and a task, and keeps statistics: a
sixth of what a request cost the ingress.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
from redis.exceptions import NoScriptError, ResponseError

from batching.store.client_types import AsyncClient
from batching.store.scripts import loader as scripts

Command = tuple[str | int | float | bytes, ...]


class AsyncHeldConnection:
    """Connects when first needed. One call at a time.

    As by the client itself, a command is repeated only if its connection says that it was not
    carried out, and a connection on which a reply may still arrive is not used again.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self._timeout_s: float | None = None

    async def call(self, *commands: Command) -> list[Any]:
        """Returns the answers to these commands, sent in one write and carried out in this order.

        Raises:
            RedisError, OSError: some of the commands may have been carried out.
        """
        if self._connection is None:
            self._connection = await self._pool.get_connection()
            # One timer for the whole call instead of two for each command.
            self._timeout_s, self._connection.socket_timeout = self._connection.socket_timeout, None
        connection = self._connection

        async def disconnect(_: Exception) -> None:
            await connection.disconnect(nowait=True)

        return await connection.retry.call_with_retry(  # type: ignore[no-any-return]
            lambda: self._exchange(connection, commands), disconnect
        )

    async def run(
        self, verb: str, keys: Sequence[str], arguments: Sequence[str | int | bytes]
    ) -> Any:
        """Returns what the script `<verb>.lua` answers."""
        command: Command = ("EVALSHA", scripts.sha(verb), len(keys), *keys, *arguments)
        try:
            [answer] = await self.call(command)
        except NoScriptError:
            await self.call(("SCRIPT", "LOAD", scripts.source(verb)))
            [answer] = await self.call(command)
        return answer

    async def close(self) -> None:
        """Closes the connection and gives it back; no call may be under way."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.socket_timeout = self._timeout_s
            # Not kept for other callers: in a cluster they have pools of their own.
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def _exchange(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                # Its stub says "tuple of one".
                packed = [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]
                await connection.send_packed_command(packed)
                return [await connection.read_response() for _ in commands]
        except ResponseError:
            if len(commands) > 1:
                await connection.disconnect(nowait=True)
            raise
