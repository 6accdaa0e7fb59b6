"""Channels for tests, and clients of Redis whose calls a test steps into."""

import asyncio
import contextlib
from collections import Counter

import pytest
import redis.asyncio

from batching.store.arena import NO_MEMORY
from batching.store.channel import Channel
from batching.store.clients import connect_async
from batching.store.ingress_queue import IngressQueue, Patience
from batching.store.keys import VersionKeys
from batching.store.pending_request import AwaitedRequest
from tests.chaos.proxy import ChaosProxy
from tests.support import DEAD_AFTER_MS, KEY, QueueHarness, make_outage, wire_of


@contextlib.asynccontextmanager
async def open_channel(source, *, memory=NO_MEMORY, **times):
    """A channel over this client, or one of a harness; `times` are fields of its Patience.

    Channel and client are closed afterwards.
    """
    client = source.backend.connect_async() if isinstance(source, QueueHarness) else source
    patience = Patience(**times)
    queue = IngressQueue(
        client, KEY, "ingress-a" + memory.arena.mark, DEAD_AFTER_MS, block_s=patience.block_s
    )
    channel = Channel(KEY, queue, make_outage(), patience, memory=memory, resubmitted=Counter())
    try:
        yield channel
    finally:
        await channel.close()
        await client.aclose()


def submit(channel, name, wire, *, timeout_s=10.0):
    """A request that waits in this channel; its `outcome` is to be awaited."""
    request = AwaitedRequest(name)
    request.wire, request.timeout_s = wire, timeout_s
    channel.submit(request)
    return request


def ask(channel, name, wire=None, *, timeout_s=10.0):
    """A task that waits as a client does; the request is named after its text."""
    wire = wire_of(name) if wire is None else wire
    return asyncio.create_task(submit(channel, name, wire, timeout_s=timeout_s).outcome())


class SteppedRedis(redis.asyncio.Redis):
    """A client into whose calls a test steps, on all of its connections."""

    written = ()  # the buffers, in their order

    async def before(self, commands):
        """These packed commands are about to be sent."""

    def after(self, commands):
        """One of them was answered."""


class HaltingRedis(SteppedRedis):
    """Its next call of one command waits until the test lets it go."""

    halted = None

    def halt(self, command):
        self.halted = command.encode()
        self.has_arrived = asyncio.Event()
        self.may_go = asyncio.Event()

    async def before(self, commands):
        if self.halted and self.halted in commands:
            self.halted = None
            self.has_arrived.set()
            await self.may_go.wait()


class DeafRedis(SteppedRedis):
    """It loses the answer to its next call in which one of these words is."""

    lost = ()

    def after(self, commands):
        if any(name.encode() in commands for name in self.lost):
            self.lost = ()
            raise redis.ConnectionError("the answer is lost")


class NeverSubmitting(SteppedRedis):
    """Each submit is refused, before the script is carried out or after, while it `is_broken`."""

    is_carried_out = is_broken = True
    refused = 0

    async def before(self, commands):
        self.refuse(commands, is_due=not self.is_carried_out)

    def after(self, commands):
        self.refuse(commands, is_due=self.is_carried_out)

    def refuse(self, commands, *, is_due):
        if self.is_broken and is_due and VersionKeys.of(KEY).config.encode() in commands:
            self.refused += 1
            raise redis.ConnectionError("the line is broken")


class FarRedis(SteppedRedis):
    """A body takes its time to it."""

    body_s = 0.0

    async def before(self, commands):
        if commands.startswith(b"*5\r\n$3\r\nSET\r\n"):
            await asyncio.sleep(self.body_s)


def special(kind, url):
    """A client of this kind; skips where the URL is a cluster's, whose clients are our own."""
    if "+" in url.partition("://")[0]:
        pytest.skip("steps into a client of a single server")
    pool = connect_async(url).connection_pool
    client = kind.from_pool(pool)

    class Stepped(pool.connection_class):
        async def _connect(self):
            await super()._connect()
            self._writer._transport = SteppedTransport(client, self._writer.transport)

    pool.connection_class = Stepped
    return client


class SteppedTransport:
    """Shows the client what is written, before it is, and what has been answered, after it was."""

    def __init__(self, client, transport):
        self._client, self._transport = client, transport
        self._commands = b""
        self._steps = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())
        self.set_protocol(transport.get_protocol())

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def writelines(self, buffers):
        self._client.written += tuple(buffers)
        self._steps.put_nowait(b"".join(buffers))

    def set_protocol(self, protocol):
        self._protocol = protocol
        self._transport.set_protocol(self)

    def get_protocol(self):
        return self._protocol

    async def _write(self):
        while not self._transport.is_closing():
            commands = await self._steps.get()
            with self._lost_by_error():
                await self._client.before(commands)
                self._commands = commands
                self._transport.write(commands)

    def data_received(self, data):
        with self._lost_by_error():
            self._client.after(self._commands)
            feed(self._protocol, data)

    def eof_received(self):
        return self._protocol.eof_received()

    def connection_lost(self, error):
        self._writing.cancel()
        self._protocol.connection_lost(error)

    @contextlib.contextmanager
    def _lost_by_error(self):
        try:
            yield
        except redis.ConnectionError:
            self._transport.abort()


def feed(protocol, data):
    """Gives these bytes to a protocol of either kind, in pieces if it has no room for more."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    while data:
        room = protocol.get_buffer(-1)
        some = data[: len(room)]
        room[: len(some)] = some
        protocol.buffer_updated(len(some))
        data = data[len(some) :]


class CutOff(ChaosProxy):
    """A line to Redis; what is not `connected` is reset."""

    @property
    def connected(self):
        return not self._is_down

    @connected.setter
    def connected(self, is_connected):
        self.heal() if is_connected else self.go_down()
