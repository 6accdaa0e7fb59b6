"""One call at a time over a transport: written at once, answered by one future.

redis-py makes the connection, greets, and gives its transport away. Its streams cost a request more
than its commands do: a task and two timers for each write and each read, and a copy of every byte.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
import redis
from redis.exceptions import InvalidResponse

from batching.store.commands import Buffer
from batching.store.lost_connections import ASYNC_PARSER

Buffers = Sequence[Buffer]

_MORE_IS_DUE = object()


class Calls:
    """Ends each call in time, or when the connection ends; its two kinds read the answers.

    After a call that was broken off, or an answer that was not asked for, no later answer can be
    told from a late one, so that the connection is given up at once. What had not been sent is
    dropped: a request whose client was told that it failed must not reach Redis later.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._former = transport.get_protocol()  # which redis-py may wait for
        self._due = 0
        self._answers: list[Any] = []
        self._answered: asyncio.Future[list[Any]] | None = None
        transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    async def call(self, buffers: Buffers, count: int, timeout_s: float | None) -> list[Any]:
        """Returns so many answers to the commands in these buffers, errors among them.

        The buffers are sent as they are, without a copy.

        Raises:
            RedisError: the answers have not come; the commands may have been carried out.
        """
        if not self.is_open:
            raise redis.ConnectionError("Connection closed by server.")
        loop = asyncio.get_running_loop()
        self._due, self._answers = count, []
        answered: asyncio.Future[list[Any]] = loop.create_future()
        self._answered = answered
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._on_time_out)
        try:
            self._transport.writelines(buffers)
            return await answered
        except BaseException:
            self.give_up()
            raise
        finally:
            self._answered = None
            if timer is not None:
                timer.cancel()

    def give_up(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Is not called: the connection was there before."""

    def pause_writing(self) -> None:
        """Does nothing: what is held back is the one call that is under way."""

    def resume_writing(self) -> None:
        """Does nothing."""

    def eof_received(self) -> None:
        self._fail(redis.ConnectionError("Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        """Fails the call that is under way."""
        self._fail(redis.ConnectionError(f"Connection lost: {error or 'closed by server'}."))
        self._former.connection_lost(error)

    def _on_time_out(self) -> None:
        self._fail(redis.TimeoutError("Timeout reading from Redis"))

    def _add(self, answer: Any) -> None:
        answered = self._answered
        if answered is None or len(self._answers) == self._due:
            self.give_up()
            return
        self._answers.append(answer)
        if len(self._answers) == self._due and not answered.done():
            answered.set_result(self._answers)

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)


class SmallCalls(Calls, asyncio.Protocol):
    """Calls whose answers are of any form, parsed by hiredis."""

    def __init__(self, transport: Any) -> None:
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=ASYNC_PARSER.parse_error,
            notEnoughData=_MORE_IS_DUE,
        )
        super().__init__(transport)

    def data_received(self, data: bytes) -> None:
        """Takes in the answers that are complete."""
        reader = self._reader
        reader.feed(data)
        try:
            while (answer := reader.gets()) is not _MORE_IS_DUE:
                self._add(answer)
        except InvalidResponse as error:
            self._fail(error)
            self.give_up()
