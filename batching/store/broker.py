"""Passes an ingress's requests into the queue: one request in, one outcome back."""

import asyncio
import uuid
from collections import Counter

from batching import errors
from batching.models.spec import ModelSpec, VersionKey
from batching.protocol import Reply, Wire
from batching.store import keys
from batching.store.arena import NO_MEMORY, IngressMemory
from batching.store.background_tasks import end_tasks
from batching.store.channel import Channel
from batching.store.clients import connect_async
from batching.store.ingress_queue import USUAL_PATIENCE, IngressQueue, Patience
from batching.store.pending_request import AwaitedRequest, PendingRequest, ReplyStream
from batching.store.redis_errors import AWAY, OutageLog, queue_lost, store_unavailable


class Broker:
    """Owns a channel per model version that has traffic. Lives on one event loop.

    A channel has two connections of its own, and a third once a reply was large. Whenever one is
    opened, those that were not used for a minute are closed.
    """

    def __init__(
        self,
        redis_url: str,
        outage: OutageLog,
        *,
        dead_after_s: float = 3.0,
        patience: Patience = USUAL_PATIENCE,
        memory: IngressMemory = NO_MEMORY,
    ) -> None:
        self._outage = outage
        self._patience = patience
        self._dead_after_ms = int(dead_after_s * 1000)
        self._ingress_id = uuid.uuid4().hex + memory.arena.mark
        self.memory = memory
        # How many requests Redis had lost and got again; also by channels that were closed.
        self.resubmitted: Counter[VersionKey] = Counter()
        self.client = connect_async(redis_url)
        self._channels: dict[VersionKey, Channel] = {}
        self._closing: asyncio.Task[None] | None = None
        self._is_draining = False

    @property
    def waiting(self) -> int:
        return sum(channel.waiting for channel in self._channels.values())

    async def close(self) -> None:
        """Closes all channels and connections; refuses the requests that still wait."""
        self._is_draining = True
        if self._closing is not None:
            await end_tasks([self._closing])
        for channel in self._channels.values():
            await channel.close()
        self.memory.arena.close()
        await self.client.aclose()

    def submit(self, spec: ModelSpec, request: PendingRequest) -> None:
        """Submits a request whose `wire` is what `Request.to_wire` wrote.

        Its one outcome is a call. `on_reply`: a reply, with `error_type` set where it is an error,
        or a stream, which must be read to its end or closed; each piece gives the next one the
        whole time again. `on_error`: NoWorker, QueueFull, QueueMemoryFull, StoreUnavailable,
        QueueLost, Draining: refused. DeadlineExceeded: no answer came in time; the request will not
        be run any more. VersionNotFound: see `why_unknown`. ClientLeft: `leave` was called.
        """
        if self._is_draining:
            request.fail(errors.Draining("The server is shutting down.", retry_after_s=1.0))
            return
        if not request.timeout_s:
            request.timeout_s = default_timeout_s(spec)
        channel = self._channels.get(spec.key) or self._open_channel(spec.key)
        channel.submit(request)

    async def predict(self, spec: ModelSpec, wire: Wire, *, request_id: str) -> Reply | ReplyStream:
        """Submits a request and returns its reply, or raises its error."""
        request = AwaitedRequest(request_id)
        request.wire = wire
        self.submit(spec, request)
        try:
            return await request.outcome()
        except errors.VersionNotFound as error:
            raise await self.why_unknown(error) from error

    async def why_unknown(self, error: errors.VersionNotFound) -> errors.ServeError:
        """Returns why a version that was registered has no queue: this error, or another one.

        Either it is registered no longer, or not yet again, as Redis was emptied.
        """
        try:
            is_emptied = not await self.client.exists(keys.EPOCH)
        except AWAY as away:
            return store_unavailable(away)
        return queue_lost() if is_emptied else error

    def _open_channel(self, key: VersionKey) -> Channel:
        patience = self._patience
        queue = IngressQueue(
            self.client, key, self._ingress_id, self._dead_after_ms, block_s=patience.block_s
        )
        self.resubmitted[key] += 0
        channel = self._channels[key] = Channel(
            key, queue, self._outage, patience, memory=self.memory, resubmitted=self.resubmitted
        )
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close_unused())
        return channel

    async def _close_unused(self) -> None:
        for key, channel in list(self._channels.items()):
            # A request that comes later finds none and opens another.
            unused_s = asyncio.get_running_loop().time() - channel.used_at
            if channel.is_idle and unused_s > self._patience.unused_s:
                del self._channels[key]
                await channel.close()


def default_timeout_s(spec: ModelSpec) -> float:
    """Returns the seconds after which a request that names no time of its own is given up."""
    if spec.client_timeout_ms > 0:
        return spec.client_timeout_ms / 1000
    return spec.queue_timeout_s + spec.response_timeout_s
