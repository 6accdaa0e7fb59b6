"""Listens for changes of the registry."""

from collections.abc import AsyncGenerator
from typing import Any

import redis
from redis.asyncio.client import PubSub

from batching.store import keys
from batching.store.held_connections import AsyncClient
from batching.store.redis_errors import REFUSED

SILENCE_S = 2.0


async def changed_models(
    client: AsyncClient, silence_s: float = SILENCE_S
) -> AsyncGenerator[str | None, None]:
    """Yields None once it listens, then the name of each model that has changed.

    After `silence_s` it asks the server for a sign of life: otherwise it would listen for ever to a
    server that is frozen or cut off, while its successor announces changes to others.

    Raises:
        RedisError, OSError: the connection is broken; changes may have been missed.
    """
    is_asked = is_subscribed = False
    async with client.pubsub() as channel:
        await channel.subscribe(keys.CHANGES)
        while True:
            message = await _next_message(channel, silence_s, may_refuse=is_subscribed)
            if message is None:
                if is_asked:
                    raise redis.TimeoutError("no answer on the channel of changes")
                await channel.ping()
            elif message["type"] == "message":
                yield message["data"].decode(errors="replace")
            elif message["type"] == "subscribe":
                if is_subscribed:
                    raise redis.ConnectionError("the channel of changes was broken meanwhile")
                is_subscribed = True
                yield None
            is_asked = message is None


async def _next_message(
    channel: PubSub, timeout_s: float, *, may_refuse: bool
) -> dict[str, Any] | None:
    """Returns the message that comes within `timeout_s`; a PING's answer has the type `pong`."""
    try:
        return await channel.get_message(timeout=timeout_s)  # type: ignore[no-any-return]
    except REFUSED:
        # A server that cannot write to its disk refuses PINGs, but lives and announces changes.
        if may_refuse:
            return {"type": "pong"}
        raise
