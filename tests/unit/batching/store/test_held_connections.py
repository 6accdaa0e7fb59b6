"""Held connections: calls get their own answers, and those that were lost are made again.

Whole hosts are cut in tests/network.
"""

import asyncio
import contextlib
import socket
import struct

import pytest
import redis
import uvloop

from batching.store.clients import connect, connect_async
from batching.store.held_connections import (
    LINE_BYTES,
    AsyncHeldConnection,
    HeldConnection,
    ParsedExchange,
    StringExchange,
)
from batching.store.scripts.loader import command
from tests.support import eventually_async
from tests.unit.batching.store.channels import feed

BOTH_KINDS = pytest.mark.parametrize("is_for_strings", [False, True], ids=["parsed", "strings"])
PING = [b"*1\r\n$4\r\nPING\r\n"]
LARGE = bytes(range(256)) * 400
GET_ALL = ("MGET", "{ferry}:a", "{ferry}:b", "{ferry}:c")
BEATS = "{ferry}:beats"
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@pytest.fixture
def line(real_backend):
    """A connection for scripts, to the real server."""
    client = connect(real_backend.url)
    yield HeldConnection(client)
    client.connection_pool.disconnect()


def beat(line, *members):
    arguments = [60_000, 60_000, 0, len(members), *members]
    silent, added = line.call(command("beat", [BEATS], arguments))
    assert silent == []
    return added


def test_held_connection_brings_its_script_and_is_made_again(line, real_backend):
    # Given a server that does not know the script
    real_backend.client.execute_command("SCRIPT", "FLUSH")

    # When / Then
    assert beat(line, "a", "b") == 2
    assert beat(line, "b", "c") == 1

    # When the server has closed it meanwhile: nothing was under way, so no caller need hear of it
    real_backend.client.client_kill_filter(_type="normal", skipme=True)
    assert beat(line, "a") == 0


def test_refusal_is_raised_and_the_connection_goes_on(line, real_backend):
    # Given
    real_backend.client.execute_command("ACL", "SETUSER", "default", "-mget")

    # When / Then
    try:
        with pytest.raises(redis.exceptions.NoPermissionError):
            line.call(GET_ALL)
    finally:
        real_backend.client.execute_command("ACL", "SETUSER", "default", "+mget")
    assert line.call(GET_ALL) == [None] * 3


def test_silent_server_is_given_up(real_backend):
    # Given
    with connect(real_backend.url, socket_timeout_s=0.1) as client:
        line = HeldConnection(client)
        assert line.call(GET_ALL) == [None] * 3
        real_backend.client.client_pause(400, all=True)

        # When / Then
        with pytest.raises(redis.TimeoutError):
            line.call(GET_ALL)
        real_backend.client.client_unpause()
        assert line.call(GET_ALL) == [None] * 3


class ScriptedServer:
    """Greets as Redis does, and answers each PING with the next of these texts, or PONG.

    It may close its first connection after the first of them.
    """

    def __init__(self, *texts, closes_first=False):
        self._texts, self._closes_first = list(texts), closes_first
        self._writers = []
        self.connections = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self.connections += 1
        self._writers.append(writer)
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while octets := await reader.read(4096):
                writer.write(b"+OK\r\n" * octets.count(b"SETINFO"))
                for _ in range(octets.count(b"PING")):
                    writer.write(self._texts.pop(0) if self._texts else b"+PONG\r\n")
                    if self._closes_first and self.connections == 1:
                        return

    async def lose(self, client_writer, *, is_gone=False):
        """Ends the client's connection with an error, as if its host had died."""
        if is_gone:
            self._server.close()
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            writer.transport.abort()
        self._writers.clear()
        # And its event loop knows
        await eventually_async(client_writer.is_closing)


@contextlib.asynccontextmanager
async def line_to(server, is_for_strings=False, **options):
    """A held connection to this server."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    async with connect_async(f"{server.url}?{query}") as client:
        line = AsyncHeldConnection(client, is_for_strings=is_for_strings)
        yield line
        await line.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on each kind of event loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


PARTS = [b"", b"$", b"$6\r\n", b"$6\r\nnot", b"$102400\r\n" + LARGE[:9]]
FAILURES = {f"ended {n}": (redis.ConnectionError, part) for n, part in enumerate(PARTS)}
FAILURES |= {"late": (redis.TimeoutError, b"$4\r\nla"), "cancelled": (TimeoutError, b"$4\r\nla")}


@BOTH_KINDS
@pytest.mark.parametrize("failure", FAILURES)
def test_call_that_failed_gets_no_later_one_its_answer(run, is_for_strings, failure):
    error, part = FAILURES[failure]
    options = {"socket_timeout": 0.1} if failure == "late" else {}
    timeout_s = 0.1 if failure == "cancelled" else 4.0

    async def test():
        ends = failure.startswith("ended")
        async with (
            ScriptedServer(part, b"$5\r\nagain\r\n", closes_first=ends) as server,
            line_to(server, is_for_strings, **options) as line,
        ):
            # When
            with pytest.raises(error):
                await asyncio.wait_for(line.exchange(PING, 1), timeout_s)
            # Then
            assert await line.exchange(PING, 1) == [b"again"]
            assert server.connections == 2

    run(test())


@BOTH_KINDS
@pytest.mark.parametrize("text", [b"$1\r\na\r\n$1\r\nb\r\n", b"?1\r\n" + b"x" * LINE_BYTES])
def test_connection_with_an_answer_that_was_not_asked_for_is_given_up(run, is_for_strings, text):
    async def test():
        async with (
            ScriptedServer(text, b"$5\r\nagain\r\n") as server,
            line_to(server, is_for_strings) as line,
        ):
            # When
            with contextlib.suppress(redis.RedisError):
                await line.exchange(PING, 1)
            # Then
            assert await line.exchange(PING, 1) == [b"again"]
            assert server.connections == 2

    run(test())


def test_error_among_the_answers_leaves_the_others_to_their_caller(run):
    async def test():
        texts = b"$1\r\na\r\n", b"-OOM command not allowed\r\n", b"$1\r\nb\r\n"
        async with ScriptedServer(*texts) as server, line_to(server) as line:
            # When
            first, second, third = await line.exchange(PING * 3, 3)
            # Then
            assert (first, third) == (b"a", b"b")
            assert isinstance(second, redis.exceptions.OutOfMemoryError)
            assert server.connections == 1

    run(test())


class StillTransport(asyncio.Transport):
    """Sends nothing; what arrives is fed to its protocol."""

    def __init__(self):
        super().__init__()
        self.protocol = None
        self.written = []

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def is_closing(self):
        return False

    def abort(self):
        """There is nothing to close."""

    def writelines(self, buffers):
        self.written += buffers


ANSWERS = {
    b"$5\r\nhello\r\n": b"hello",
    b"$0\r\n\r\n": b"",
    b"$-1\r\n": None,
    b":12\r\n": 12,
    b"$%d\r\n%b\r\n" % (len(LARGE), LARGE): LARGE,
    b"$4\r\n\r\n\r\n\r\n": b"\r\n\r\n",
}


@BOTH_KINDS
def test_answers_of_any_kind_and_size_come_in_their_order(run, is_for_strings):
    async def test():
        async with ScriptedServer(*ANSWERS) as server, line_to(server, is_for_strings) as line:
            assert await line.exchange(PING * len(ANSWERS), len(ANSWERS)) == [*ANSWERS.values()]

    run(test())


@BOTH_KINDS
@pytest.mark.parametrize("size", [1, 2, 3, 7, LINE_BYTES - 1, LINE_BYTES, 4096, 10**6])
async def test_answers_may_arrive_in_pieces_of_any_size(is_for_strings, size):
    # Given
    calls = (StringExchange if is_for_strings else ParsedExchange)(StillTransport())
    answers = asyncio.create_task(calls.call([], len(ANSWERS), 5.0))
    await asyncio.sleep(0)
    # When
    arriving = b"".join(ANSWERS)
    for start in range(0, len(arriving), size):
        feed(calls, arriving[start : start + size])
    # Then
    assert await answers == list(ANSWERS.values())


@pytest.mark.parametrize("begin", [b"-", b":", b"$", b"*"])
async def test_answer_that_begins_with_an_endless_line_is_an_error(begin):
    # Given
    calls = StringExchange(StillTransport())
    answers = asyncio.create_task(calls.call([], 1, 5.0))
    await asyncio.sleep(0)
    # When / Then
    feed(calls, begin + b"1" * LINE_BYTES)
    with pytest.raises(redis.InvalidResponse):
        await answers


async def test_large_value_is_what_was_received_and_no_copy_of_it():
    # Given
    calls = StringExchange(StillTransport())
    answers = asyncio.create_task(calls.call([], 1, 5.0))
    await asyncio.sleep(0)
    # When
    feed(calls, b"$%d\r\n" % len(LARGE))
    place = calls.get_buffer(-1)
    place[:] = LARGE + b"\r\n"
    calls.buffer_updated(len(place))
    # Then
    [value] = await answers
    assert value.obj is place.obj


def test_held_connection_that_was_lost_while_idle_is_made_anew(run):
    async def test():
        async with ScriptedServer() as server, connect_async(server.url) as client:
            # Given
            line = AsyncHeldConnection(client)
            assert await line.call(("PING",)) == [b"PONG"]
            # When
            await server.lose(line._connection._writer)
            # Then
            assert await line.call(("PING",)) == [b"PONG"]
            await line.close()

    run(test())


def test_pooled_connection_that_was_lost_while_idle_is_made_anew(run):
    async def test():
        async with ScriptedServer() as server, connect_async(server.url) as client:
            # Given
            assert await client.ping()
            [idle] = client.connection_pool._available_connections
            # When
            await server.lose(idle._writer)
            # Then
            assert await client.ping()

    run(test())


def test_connection_to_a_server_that_has_gone_is_an_error_of_redis(run):
    async def test():
        async with ScriptedServer() as server, connect_async(server.url) as client:
            # Given
            line = AsyncHeldConnection(client)
            await line.call(("PING",))
            # When
            await server.lose(line._connection._writer, is_gone=True)
            # Then
            with pytest.raises(redis.ConnectionError):
                await line.call(("PING",))
            await line.close()

    run(test())
