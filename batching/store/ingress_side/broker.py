"""The ingress's door to the queue: one call per request, one reply back."""

import asyncio
import uuid

from batching import errors
from batching.models.spec import ModelSpec, VersionKey
from batching.protocol import Reply, Wire
from batching.store import keys
from batching.store.background_tasks import end_tasks
from batching.store.clients import at, close_unused, connect_async
from batching.store.ingress_side.ingress_queue import IngressQueue
from batching.store.ingress_side.patience import USUAL_PATIENCE, Patience
from batching.store.ingress_side.pending_request import ClientGone
from batching.store.ingress_side.reply_stream import ReplyStream
from batching.store.ingress_side.version_channel import VersionChannel
from batching.store.keys import VersionKeys
from batching.store.outage_log import OutageLog
from batching.store.redis_errors import AWAY
from batching.store.unavailable import queue_lost, store_unavailable


class Broker:
    """Owns a channel per model version that has traffic. Lives on one event loop.

    A channel has two connections of its own. Whenever one is opened, those that were not used for
    a minute are closed, and those of versions that have been unregistered.
    """

    def __init__(
        self,
        redis_url: str,
        outage: OutageLog,
        *,
        dead_after_s: float = 3.0,
        patience: Patience = USUAL_PATIENCE,
    ) -> None:
        self._outage = outage
        self._patience = patience
        self._dead_after_ms = int(dead_after_s * 1000)
        self._ingress_id = uuid.uuid4().hex
        self._client = connect_async(redis_url)
        self._channels: dict[VersionKey, VersionChannel] = {}
        self._resubmitted: dict[VersionKey, int] = {}  # by channels that were closed; most: none
        self._closing: asyncio.Task[None] | None = None
        self._is_draining = False

    @property
    def waiting(self) -> int:
        return sum(channel.waiting for channel in self._channels.values())

    def resubmitted(self) -> dict[VersionKey, int]:
        """Returns how many requests Redis had lost and got again; from any thread."""
        # In this order: a channel that is closed meanwhile is in one of the two.
        open_channels = list(self._channels.items())
        return {**self._resubmitted, **{key: channel.resubmitted for key, channel in open_channels}}

    async def close(self) -> None:
        """Closes all channels and connections; refuses the requests that still wait."""
        self._is_draining = True
        if self._closing is not None:
            await end_tasks([self._closing])
        for channel in self._channels.values():
            await channel.close()
        await self._client.aclose()

    async def predict(
        self,
        spec: ModelSpec,
        wire: Wire,
        *,
        request_id: str,
        timeout_s: float | None = None,
        client_left: ClientGone | None = None,
    ) -> Reply | ReplyStream:
        """Submits a request, as `Request.to_wire` wrote it, and returns its one reply.

        An error reply has `error_type` set. The answer of a handler that sends pieces while it runs
        is a stream of them, which must be read to its end or closed. Each piece gives the next one
        the whole time again.

        The deadline is `timeout_s` if given, else the model's clientTimeoutInMills, else the time a
        request may wait plus the time a batch may run.

        Raises:
            NoWorker, NoTicket, QueueFull, QueueMemoryFull, StoreUnavailable, QueueLost, Draining:
                refused.
            DeadlineExceeded: no answer came in time; the request will not be run any more.
            VersionNotFound, ModelNotFound: the version was unregistered meanwhile.
            ClientLeft: `client_left` finished first; the request will not be run any more.
        """
        if self._is_draining:
            raise errors.Draining("The server is shutting down.", retry_after_s=1.0)
        if timeout_s is None:
            timeout_s = default_timeout_s(spec)
        channel = self._channels.get(spec.key) or self._open_channel(spec.key)
        try:
            reply = await channel.ask(request_id, wire, timeout_s, client_left)
        except errors.StoreUnavailable as error:
            self._outage.note("submit", error)
            raise
        except errors.VersionNotFound as error:
            # No longer registered, or not yet again.
            if await self._is_registry_lost():
                raise queue_lost() from error
            raise
        self._outage.over("submit")
        return reply

    async def _is_registry_lost(self) -> bool:
        try:
            return not await self._client.exists(keys.EPOCH)
        except AWAY as error:
            raise store_unavailable(error) from error

    def _open_channel(self, key: VersionKey) -> VersionChannel:
        patience = self._patience
        queue = IngressQueue(
            self._client, key, self._ingress_id, self._dead_after_ms, block_s=patience.block_s
        )
        channel = self._channels[key] = VersionChannel(key, queue, self._outage, patience)
        channel.resubmitted = self._resubmitted.get(key, 0)
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close_unused())
        return channel

    async def _close_unused(self) -> None:
        for key, channel in list(self._channels.items()):
            # Asked again after each wait: a request that came meanwhile keeps its channel, and one
            # that comes later finds none and opens another.
            if await self._is_unused(key, channel) and channel.is_idle:
                if channel.resubmitted:
                    self._resubmitted[key] = channel.resubmitted
                del self._channels[key]
                await channel.close()
        await close_unused(self._client, [VersionKeys.of(key).tag for key in self._channels])

    async def _is_unused(self, key: VersionKey, channel: VersionChannel) -> bool:
        if not channel.is_idle:
            return False
        if channel.unused_s > self._patience.unused_s:
            return True
        version_keys = VersionKeys.of(key)
        try:
            return not await at(self._client, version_keys.tag).exists(version_keys.config)
        except AWAY:
            return False


def default_timeout_s(spec: ModelSpec) -> float:
    """Returns the seconds after which a request that names no time of its own is given up."""
    if spec.client_timeout_ms > 0:
        return spec.client_timeout_ms / 1000
    return spec.queue_timeout_s + spec.response_timeout_s
