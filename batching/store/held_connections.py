"""Connections that one caller holds, for the calls that are made for every batch.

redis-py makes the connection, greets, and decides whether a command is repeated: only if its
connection says that it was not carried out. Commands that belong together leave in one write. Large
strings go out without a copy.

Of asyncio connections the transport is taken over. redis-py's `execute_command` takes a connection
from the pool, packs in Python, guards each write and each read by a timer and a task, and keeps
statistics: a sixth of what a request cost the ingress.
"""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import hiredis
import redis
import redis.asyncio
import redis.asyncio.connection
import redis.connection
from redis.exceptions import AskError, InvalidResponse, NoScriptError, ResponseError, TryAgainError

from batching.protocol import Wire
from batching.store.redis_errors import AWAY, NotHere
from batching.store.scripts import loader as scripts

Client = redis.Redis
AsyncClient = redis.asyncio.Redis
Command = scripts.Command
Buffer = bytes | bytearray | memoryview

# A host that is cut off sends no goodbye, and its callers would wait for minutes. Here a connection
# ends once data has not been acknowledged for a second, or after three seconds without a word, so
# that callers connect again as soon as the line is back. Data that was not acknowledged is dropped:
# a submit whose client was told that it failed must not reach the queue later. Redis itself need
# not run for this: its kernel acknowledges. For redis-py's `socket_keepalive_options`; only those
# that this system has.
TCP_LIMITS = {
    getattr(socket, name): limit
    for name, limit in {
        "TCP_KEEPIDLE": 2,  # seconds
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": 1000,  # ms
    }.items()
    if hasattr(socket, name)
}

CONNECT_TIMEOUT_S = 1.0
# redis-py refuses the 101st connection of a client unless told otherwise; every worker that a node
# speaks of, and every version that an ingress serves, may need one at the same moment.
MOST_CONNECTIONS = 2**31

# Sent by a server that is a replica now, or starts, or is cut off.
_NOT_HERE = ("CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "UNBLOCKED")
_FULL = "max number of clients reached"
# MOVED, which is an AskError, comes when a slot has moved; ASK and TRYAGAIN while it moves. The
# command was not carried out, and the right server is found by connecting again.
NOT_DONE = (NotHere, AskError, TryAgainError)

# So much is read of an answer before its length is known, and of its value copied.
LINE_BYTES = 512
_LINE_END = b"\r\n"
_MORE_IS_DUE = object()


def connection_options(socket_timeout_s: float, *, is_local: bool = False) -> dict[str, Any]:
    """Returns redis-py's options of all connections; `is_local` is one to a path."""
    options = {
        "socket_connect_timeout": min(CONNECT_TIMEOUT_S, socket_timeout_s),
        "socket_timeout": socket_timeout_s,
        "max_connections": MOST_CONNECTIONS,
        "protocol": 2,  # RESP3 would cost each new connection a round trip, for nothing
    }
    if is_local:
        return options
    return {**options, "socket_keepalive": True, "socket_keepalive_options": TCP_LIMITS}


def packed(command: Command) -> bytes:
    # Its stub says "tuple of one".
    return hiredis.pack_command(command)  # type: ignore[arg-type, no-any-return]


def packed_set(name: str, wire: Wire, ttl_ms: int) -> tuple[bytes, Buffer, bytes]:
    """Returns a SET of a message's bytes; the piece in the middle is the body itself."""
    key, ttl = name.encode(), str(ttl_ms).encode()
    head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b" % (
        *(len(key), key),
        *(wire.size_bytes, wire.head),
    )
    return head, wire.body, b"%b\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (wire.tail, len(ttl), ttl)


def _noticing_the_wrong_server(parser: Any) -> Any:
    classes = {**parser.EXCEPTION_CLASSES, **dict.fromkeys(_NOT_HERE, NotHere)}
    classes["ERR"] = {**classes["ERR"], _FULL: NotHere}
    return type("Parser", (parser,), {"EXCEPTION_CLASSES": classes})


PARSER = _noticing_the_wrong_server(redis.connection.DefaultParser)
ASYNC_PARSER = _noticing_the_wrong_server(redis.asyncio.connection.DefaultParser)


class HeldConnection:
    """A connection of one thread's own. One call at a time.

    Its calls raise redis' own errors and OSErrors. The commands may then have been carried out. A
    script that the server forgot is sent again.
    """

    def __init__(self, client: Client) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self.is_interrupted = False

    def exchange(self, buffers: Sequence[Buffer], count: int) -> list[Any]:
        """Returns the answers to this many packed commands, ResponseErrors among them.

        The buffers are sent as they are, without a copy.
        """
        connection = self._connection
        if connection is None:
            connection = self._connection = self._pool.get_connection()
        # Checked as the pool checks one that it gives away.
        if not connection.is_connected or hasattr(connection, "finder"):
            connection.connect()
        drop_if_lost(connection)

        def exchange() -> list[Any]:
            if self.is_interrupted:
                raise redis.ConnectionError("interrupted")
            connection.send_packed_command(buffers)
            answers: list[Any] = []
            while len(answers) < count:
                try:
                    answers.append(connection.read_response())
                except NOT_DONE:
                    raise
                except ResponseError as error:
                    answers.append(error)
            return answers

        answers: list[Any] = connection.retry.call_with_retry(
            exchange, lambda _: connection.disconnect()
        )
        return answers

    def try_all(self, commands: Sequence[Command]) -> list[Any]:
        """Returns the answers, ResponseErrors among them; one round trip for all."""
        answers = self.exchange([packed(command) for command in commands], len(commands))
        for n, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                self.call(scripts.loading(commands[n]))
                [answers[n]] = self.try_all([commands[n]])
        return answers

    def call(self, command: Command) -> Any:
        [answer] = self.try_all([command])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def interrupt(self) -> None:
        """Ends the call that waits, and each later one, by an error; safe in a signal handler."""
        self.is_interrupted = True
        hang_up(self._connection)


def drop_if_lost(connection: Any) -> None:
    """Closes a blocking connection that the server has closed, so that its next use opens it again.

    No reply may be due on it. Servers with a `timeout` close idle connections.
    """
    try:
        is_stale = connection.can_read()
    except AWAY:
        is_stale = True
    if is_stale:
        connection.disconnect()


def hang_up(connection: Any) -> None:
    """Ends a blocking read on this connection; safe in a signal handler."""
    if (opened := getattr(connection, "_sock", None)) is not None:
        with contextlib.suppress(OSError):
            # Not its own `shutdown`, which takes a TLS session from under the read.
            socket.socket.shutdown(opened, socket.SHUT_RDWR)


class NoticesItsLoss:
    """Makes redis-py's asyncio connections connect again when the event loop has closed them.

    The kernel ends idle connections to a host that was cut off. redis-py would send on them, since
    the stream has an error and not an end; uvloop then raises a RuntimeError, which no caller
    expects. Nothing was sent, so nothing is repeated.

    A new connection reads the files for TLS again, as they may have been renewed.
    """

    _writer: Any
    is_elsewhere = False  # for connections that look for their server

    @property
    def transport(self) -> Any:
        return self._writer.transport

    async def _connect(self) -> None:
        if (tls := getattr(self, "ssl_context", None)) is not None:
            tls.context = None  # redis-py's blocking connections keep none
        await super()._connect()  # type: ignore[misc]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self._writer is not None and self._writer.is_closing():
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
        await super().send_packed_command(command, check_health)  # type: ignore[misc]


class _Exchange:
    """One call at a time over a transport: written at once, answered by one future.

    Each call ends in time, or when the connection ends; the two kinds read the answers. After a
    call that was broken off, or an answer that was not asked for, no later answer can be told from
    a late one, so that the connection is given up at once. What had not been sent is dropped: a
    request whose client was told that it failed must not reach Redis later.
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

    async def call(
        self, buffers: Sequence[Buffer], count: int, timeout_s: float | None
    ) -> list[Any]:
        """Returns this many answers to the commands in these buffers, errors among them.

        Raises:
            RedisError: the answers have not come; the commands may have been carried out.
        """
        if not self.is_open:
            raise redis.ConnectionError("Connection closed by server.")
        loop = asyncio.get_running_loop()
        self._due, self._answers = count, []
        # Without names here, as an error leads back here and would keep the buffers.
        self._answered = loop.create_future()
        timer = None
        if timeout_s is not None:
            timer = loop.call_later(
                timeout_s, self._fail, redis.TimeoutError("Timeout reading from Redis")
            )
        try:
            self._transport.writelines(buffers)
            return await self._answered
        except BaseException:
            self.give_up()
            raise
        finally:
            self._answered = None
            if timer is not None:
                timer.cancel()

    def give_up(self) -> None:
        self._transport.abort()

    def eof_received(self) -> None:
        self._fail(redis.ConnectionError("Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(redis.ConnectionError(f"Connection lost: {error or 'closed by server'}."))
        self._former.connection_lost(error)

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


class ParsedExchange(_Exchange, asyncio.Protocol):
    """Exchanges whose answers are of any form, parsed by hiredis."""

    def __init__(self, transport: Any) -> None:
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=ASYNC_PARSER.parse_error,
            notEnoughData=_MORE_IS_DUE,
        )
        super().__init__(transport)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        try:
            while (answer := reader.gets()) is not _MORE_IS_DUE:
                self._add(answer)
        except InvalidResponse as error:
            self._fail(error)
            self.give_up()


class StringExchange(_Exchange, asyncio.BufferedProtocol):
    """Exchanges of GET and UNLINK: each large string is received in the buffer that it stays in.

    A quarter less processor time for an answer of 150 kB than by hiredis.
    """

    def __init__(self, transport: Any) -> None:
        self._line = memoryview(bytearray(LINE_BYTES))
        self._read = 0
        self._string: memoryview | None = None  # that is coming in, its end included
        super().__init__(transport)

    def get_buffer(self, _: int) -> memoryview:
        return (self._line if self._string is None else self._string)[self._read :]

    def buffer_updated(self, count: int) -> None:
        self._read += count
        string = self._string
        if string is None:
            octets, self._read = bytes(self._line[: self._read]), 0
            try:
                while octets:
                    octets = self._take(octets)
            except ValueError as error:
                self._fail(InvalidResponse(str(error)))
                self.give_up()
        elif self._read == len(string):
            self._string, self._read = None, 0
            self._add(string[: -len(_LINE_END)])

    def _take(self, octets: bytes) -> bytes:
        """Takes in an answer, the beginning of its string, or of its line; returns what follows."""
        line, line_end, rest = octets.partition(_LINE_END)
        if not line_end:
            if len(line) == LINE_BYTES:
                raise ValueError("an answer begins with an endless line")
            self._line[: len(line)] = line
            self._read = len(line)
        elif line == b"$-1":
            self._add(None)
        elif line[:1] == b"$":
            size = int(line[1:]) + len(_LINE_END)
            string, start = memoryview(bytearray(size)), rest[:size]
            string[: len(start)] = start
            if len(start) == size:
                self._add(string[: -len(_LINE_END)])
            else:
                self._string, self._read = string, len(start)
            rest = rest[size:]
        elif line[:1] == b":":
            self._add(int(line[1:]))
        elif line[:1] == b"-":
            self._add(ASYNC_PARSER.parse_error(line[1:].decode(errors="replace")))
        else:
            raise ValueError(f"an answer begins with {line!r}")
        return rest


class AsyncHeldConnection:
    """As `HeldConnection`, on an event loop. One on which an answer may come is not reused."""

    def __init__(self, client: AsyncClient, *, is_for_strings: bool = False) -> None:
        self._pool: Any = client.connection_pool
        self._kind = StringExchange if is_for_strings else ParsedExchange
        self._connection: Any = None
        self._line: ParsedExchange | StringExchange | None = None

    async def exchange(self, buffers: Sequence[Buffer], count: int) -> list[Any]:
        """Returns the answers to this many packed commands, errors among them.

        The buffers are sent as they are, in one write, and carried out in this order.
        """
        if self._connection is None:
            self._connection = await self._pool.get_connection()
        return await self._connection.retry.call_with_retry(  # type: ignore[no-any-return]
            lambda: self._exchange(buffers, count), lambda _: asyncio.sleep(0)
        )

    async def call(self, *commands: Command) -> list[Any]:
        """Returns the answers to these commands, or raises the first error among them."""
        buffers = [packed(command) for command in commands]
        answers = await self.exchange(buffers, len(buffers))
        for n, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                _, answers[n] = await self.call(scripts.loading(commands[n]), commands[n])
            elif isinstance(answer, Exception):
                raise answer
        return answers

    async def close(self) -> None:
        """Closes the connection and gives it back; no call may be under way."""
        connection, self._connection, self._line = self._connection, None, None
        if connection is not None:
            # Not kept for other callers: in a cluster they have pools of their own.
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def _exchange(self, buffers: Sequence[Buffer], count: int) -> list[Any]:
        line, connection = self._line, self._connection
        if line is None or not line.is_open or connection.is_elsewhere:
            if line is not None:
                self._line = None
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await connection.connect()
            line = self._line = self._kind(connection.transport)
        answers = await line.call(buffers, count, connection.socket_timeout)
        for answer in answers:
            if isinstance(answer, (redis.ConnectionError, *NOT_DONE)):
                line.give_up()
                raise answer
        return answers
