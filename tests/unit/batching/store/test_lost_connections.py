"""Connections that are lost while they are idle; whole hosts are cut in tests/network."""

import asyncio
import contextlib
import socket
import struct

import pytest
import redis
import uvloop

from batching.store.async_held_connection import AsyncHeldConnection
from batching.store.clients import connect_async

RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class PongServer:
    """Answers every command with PONG, and can lose all its connections as a dead host does."""

    def __init__(self):
        self.connections = []
        self._answering = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.stop()
        await asyncio.gather(*self._answering)

    def stop(self):
        self._server.close()
        for writer in self.connections:
            writer.close()

    async def _answer(self, reader, writer):
        self.connections.append(writer)
        self._answering.append(asyncio.current_task())
        with contextlib.suppress(OSError):
            while commands := (await reader.read(4096)).count(b"*"):
                writer.write(b"+PONG\r\n" * commands)

    async def lose(self, client_writer):
        """The client's connection ends with an error, and its event loop knows."""
        for writer in self.connections:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            writer.transport.abort()
        self.connections.clear()
        async with asyncio.timeout(5):
            while not client_writer.is_closing():
                await asyncio.sleep(0.01)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request):
    """Runs coroutines on each kind of event loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


def test_held_connection_that_was_lost_while_idle_is_made_anew(runner):
    async def run():
        async with PongServer() as server, connect_async(server.url) as client:
            # Given
            line = AsyncHeldConnection(client)
            assert await line.call(("PING",)) == [b"PONG"]
            # When
            await server.lose(line._connection._writer)
            # Then
            assert await line.call(("PING",)) == [b"PONG"]
            await line.close()

    runner.run(run())


def test_pooled_connection_that_was_lost_while_idle_is_made_anew(runner):
    async def run():
        async with PongServer() as server, connect_async(server.url) as client:
            # Given
            assert await client.ping()
            [idle] = client.connection_pool._available_connections
            # When
            await server.lose(idle._writer)
            # Then
            assert await client.ping()

    runner.run(run())


def test_connection_to_a_server_that_has_gone_is_an_error_of_redis(runner):
    async def run():
        async with PongServer() as server, connect_async(server.url) as client:
            # Given
            line = AsyncHeldConnection(client)
            await line.call(("PING",))
            # When
            await server.lose(line._connection._writer)
            server.stop()
            # Then
            with pytest.raises(redis.ConnectionError):
                await line.call(("PING",))
            await line.close()

    runner.run(run())
