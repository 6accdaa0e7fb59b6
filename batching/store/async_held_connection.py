"""A connection of one caller's own, on which commands that belong together travel together.

For the calls made for every batch. redis-py's `execute_command` takes a connection from the pool,
packs in Python, guards each write and each read by a timer and a task, and keeps statistics: a
sixth of what a request cost the ingress.
"""

from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.exceptions import AskError, NoScriptError, TryAgainError

from batching.store.calls import Buffers, Calls, SmallCalls
from batching.store.client_types import AsyncClient
from batching.store.commands import Command, packed
from batching.store.scripts import loader as scripts

# The server cannot serve these keys now; which one can is found out by connecting anew.
_NOT_DONE = (redis.ConnectionError, AskError, TryAgainError)


class AsyncHeldConnection:
    """Connects when first needed. One call at a time.

    redis-py connects, and decides whether a command is repeated: only if its connection says that
    it was not carried out. A connection on which a reply may still arrive is not used again.
    """

    def __init__(
        self, client: AsyncClient, open_calls: Callable[[Any], Calls] = SmallCalls
    ) -> None:
        self._pool = client.connection_pool
        self._open_calls = open_calls
        self._connection: Any = None
        self._calls: Calls | None = None

    async def exchange(self, buffers: Buffers, count: int) -> list[Any]:
        """Returns the answers to so many packed commands, errors among them.

        They are sent in one write and carried out in this order.

        Raises:
            RedisError, OSError: some of the commands may have been carried out.
        """
        if self._connection is None:
            self._connection = await self._pool.get_connection()
        return await self._connection.retry.call_with_retry(  # type: ignore[no-any-return]
            lambda: self._exchange(buffers, count), _drop_nothing
        )

    async def call(self, *commands: Command) -> list[Any]:
        """Returns the answers to these commands, sent and carried out as by `exchange`.

        Raises:
            RedisError, OSError: some of the commands may have been carried out.
        """
        answers = await self.exchange([packed(command) for command in commands], len(commands))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def run(
        self, verb: str, keys: Sequence[str], arguments: Sequence[str | int | bytes]
    ) -> Any:
        """Returns what the script `<verb>.lua` answers."""
        command = scripts.command(verb, keys, arguments)
        try:
            [answer] = await self.call(command)
        except NoScriptError:
            _, answer = await self.call(("SCRIPT", "LOAD", scripts.source(verb)), command)
        return answer

    async def close(self) -> None:
        """Closes the connection and gives it back; no call may be under way."""
        connection, self._connection, self._calls = self._connection, None, None
        if connection is not None:
            # Not kept for other callers: in a cluster they have pools of their own.
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def _exchange(self, buffers: Buffers, count: int) -> list[Any]:
        calls, connection = self._calls, self._connection
        if calls is None or not calls.is_open or connection.is_elsewhere:
            calls = await self._connect()
        answers = await calls.call(buffers, count, connection.socket_timeout)
        for answer in answers:
            if isinstance(answer, _NOT_DONE):
                calls.give_up()
                raise answer
        return answers

    async def _connect(self) -> Calls:
        connection = self._connection
        if self._calls is not None:
            self._calls = None
            await connection.disconnect(nowait=True)
        if not connection.is_connected:
            await connection.connect()
        calls = self._calls = self._open_calls(connection.transport)
        return calls


async def _drop_nothing(_: Exception) -> None:
    """Is called before a command is repeated; its connection was given up by then."""
