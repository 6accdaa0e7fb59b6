"""Channels for tests, and clients of Redis whose calls a test steps into."""

import asyncio
import contextlib

import pytest
import redis.asyncio

from batching.store.ingress_side.ingress_queue import IngressQueue
from batching.store.ingress_side.patience import Patience
from batching.store.ingress_side.pending_request import AwaitedRequest
from batching.store.ingress_side.version_channel import VersionChannel
from batching.store.keys import VersionKeys
from tests.support import DEAD_AFTER_MS, KEY, QueueHarness, make_outage, wire_of


@contextlib.asynccontextmanager
async def open_channel(source, **times):
    """A channel over this client, or one of a harness; `times` are fields of its Patience.

    Channel and client are closed afterwards.
    """
    client = source.backend.connect_async() if isinstance(source, QueueHarness) else source
    patience = Patience(**times)
    queue = IngressQueue(client, KEY, "ingress-a", DEAD_AFTER_MS, block_s=patience.block_s)
    channel = VersionChannel(KEY, queue, make_outage(), patience)
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
    """Each submit is refused, before the script is carried out or after."""

    is_carried_out = True

    async def before(self, commands):
        self.refuse(commands, is_due=not self.is_carried_out)

    def after(self, commands):
        self.refuse(commands, is_due=self.is_carried_out)

    def refuse(self, commands, *, is_due):
        if is_due and VersionKeys.of(KEY).config.encode() in commands:
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
    client = kind.from_url(url, retry=redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0))
    pool = client.connection_pool

    class Stepped(pool.connection_class):
        commands = b""

        async def send_packed_command(self, command, check_health=True):
            commands = command if isinstance(command, bytes) else b"".join(command)
            await client.before(commands)
            await super().send_packed_command(command, check_health)
            self.commands = commands  # now: it may have connected, and sent a greeting

        async def read_response(self, *arguments, **options):
            answer = await super().read_response(*arguments, **options)
            client.after(self.commands)
            return answer

    pool.connection_class = Stepped
    return client
