"""Listening for ever to what changes in the registry."""

from collections.abc import AsyncGenerator

import redis

from batching.store import keys
from batching.store.connection import AsyncClient

SILENCE_S = 2.0


async def changed_models(client: AsyncClient) -> AsyncGenerator[str | None, None]:
    """Yields None once the channel is heard, then the name of each model that has changed.

    A server that is silent is asked whether it lives: one that is frozen, or cut off, would
    otherwise be listened to for ever while its successor announces to others.

    Raises:
        RedisError, OSError: the channel is broken; what was announced meanwhile is lost.
    """
    is_asked = is_heard = False
    async with client.pubsub() as channel:
        await channel.subscribe(keys.CHANGES)
        while True:
            message = await channel.get_message(timeout=SILENCE_S)
            if message is None:
                if is_asked:
                    raise redis.TimeoutError("no answer on the channel of changes")
                await channel.ping()
            elif message["type"] == "message":
                yield message["data"].decode(errors="replace")
            elif message["type"] == "subscribe":
                if is_heard:
                    raise redis.ConnectionError("the channel of changes was broken meanwhile")
                is_heard = True
                yield None
            is_asked = message is None
