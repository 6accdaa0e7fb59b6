"""Calls on a transport that was taken over: each gets its own answers, or an error."""

import asyncio
import contextlib

import pytest
import redis
import uvloop

from batching.store.async_held_connection import AsyncHeldConnection
from batching.store.bulk_calls import LINE_BYTES, BulkCalls
from batching.store.calls import SmallCalls
from batching.store.clients import connect_async
from tests.unit.batching.store.channels import feed

BOTH_KINDS = pytest.mark.parametrize("kind", [SmallCalls, BulkCalls])
PING = [b"*1\r\n$4\r\nPING\r\n"]
LARGE = bytes(range(256)) * 400


class ScriptedServer:
    """Greets as Redis does, and answers each PING with the next of these texts.

    It may close its first connection after the first of them.
    """

    def __init__(self, *texts, closes_first=False):
        self._texts, self._closes_first = list(texts), closes_first
        self.connections = 0
        self._serving = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader, writer):
        self.connections += 1
        self._serving.add(asyncio.current_task())
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while words := await reader.read(4096):
                for _ in range(words.count(b"SETINFO")):
                    writer.write(b"+OK\r\n")
                for _ in range(words.count(b"PING")):
                    writer.write(self._texts.pop(0))
                    if self._closes_first and self.connections == 1:
                        return


@contextlib.asynccontextmanager
async def line_to(server, kind, **options):
    """A held connection to this server."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    async with connect_async(f"{server.url}?{query}") as client:
        line = AsyncHeldConnection(client, kind)
        yield line
        await line.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on each kind of event loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@BOTH_KINDS
@pytest.mark.parametrize("part", [b"", b"$", b"$6\r\n", b"$6\r\nnot", b"$102400\r\n" + LARGE[:9]])
def test_connection_that_ends_in_the_middle_of_an_answer_fails_the_call_at_once(run, kind, part):
    async def test():
        async with (
            ScriptedServer(part, b"$5\r\nagain\r\n", closes_first=True) as server,
            line_to(server, kind) as line,
        ):
            # When
            with pytest.raises(redis.ConnectionError):
                await line.exchange(PING, 1)
            # Then
            assert await line.exchange(PING, 1) == [b"again"]
            assert server.connections == 2

    run(asyncio.wait_for(test(), 4))


@BOTH_KINDS
def test_call_that_is_not_answered_in_time_gets_no_later_one_its_answer(run, kind):
    async def test():
        async with (
            ScriptedServer(b"$4\r\nla", b"$5\r\nagain\r\n") as server,
            line_to(server, kind, socket_timeout=0.1) as line,
        ):
            # When
            with pytest.raises(redis.TimeoutError):
                await line.exchange(PING, 1)
            # Then
            assert await line.exchange(PING, 1) == [b"again"]
            assert server.connections == 2

    run(test())


@BOTH_KINDS
def test_call_that_was_cancelled_gets_no_later_one_its_answer(run, kind):
    async def test():
        async with (
            ScriptedServer(b"$4\r\nla", b"$5\r\nagain\r\n") as server,
            line_to(server, kind) as line,
        ):
            # When
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(line.exchange(PING, 1), 0.1)
            # Then
            assert await line.exchange(PING, 1) == [b"again"]
            assert server.connections == 2

    run(test())


@BOTH_KINDS
@pytest.mark.parametrize("text", [b"$1\r\na\r\n$1\r\nb\r\n", b"?1\r\n" + b"x" * LINE_BYTES])
def test_connection_with_an_answer_that_was_not_asked_for_is_given_up(run, kind, text):
    async def test():
        async with (
            ScriptedServer(text, b"$5\r\nagain\r\n") as server,
            line_to(server, kind) as line,
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
        async with ScriptedServer(*texts) as server, line_to(server, SmallCalls) as line:
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
@pytest.mark.parametrize("size", [1, 2, 3, 7, LINE_BYTES - 1, LINE_BYTES, 4096, 10**6])
async def test_answers_may_arrive_in_pieces_of_any_size(kind, size):
    # Given
    calls = kind(StillTransport())
    answers = asyncio.create_task(calls.call([], len(ANSWERS), 5.0))
    await asyncio.sleep(0)
    # When
    arriving = b"".join(ANSWERS)
    for start in range(0, len(arriving), size):
        feed(calls, arriving[start : start + size])
    # Then
    assert await answers == list(ANSWERS.values())


async def test_large_value_is_what_was_received_and_no_copy_of_it():
    # Given
    calls = BulkCalls(StillTransport())
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
