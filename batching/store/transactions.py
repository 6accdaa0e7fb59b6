"""Transactions: changes of a record that nobody else may have changed since it was read."""

import time
from collections.abc import Callable

import redis

from batching.store.connection import Client
from batching.store.redis_errors import UNHEARD

PATIENCE_S = 0.8  # as a submit's
RETRY_S = 0.05


def transact(client: Client, change: Callable[[Client], None], name: str) -> None:
    """What `change` has put into its pipeline is done, to the key as `change` has read it.

    It begins anew whenever somebody else was faster. redis-py reports a connection that was lost
    on the way in the same words, a refused one included: a server that takes no writes, a replica
    say, would be asked for ever. So of that another try is made for PATIENCE_S only.

    Raises:
        RedisError: the connection's error, or a refusal.
    """
    end_s = time.monotonic() + PATIENCE_S
    with client.pipeline() as pipe:
        while True:
            try:
                pipe.watch(name)
                change(pipe)
                pipe.execute()
            except redis.WatchError as error:
                lost = error.__context__
                if not isinstance(lost, UNHEARD):
                    continue
                if time.monotonic() > end_s:
                    raise lost from None
                time.sleep(RETRY_S)
            else:
                return
