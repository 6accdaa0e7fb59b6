"""Transactions: changes of a record that nobody else may have changed since it was read."""

import time
from collections.abc import Callable

import redis

from batching.store.connection import Client
from batching.store.redis_errors import UNHEARD

PATIENCE_S = 0.8  # as a submit's
RETRY_S = 0.05


def transact(client: Client, change: Callable[[Client], None], name: str) -> None:
    """The commands that `change` has put into its pipeline are executed as one transaction.

    It is repeated whenever somebody else has changed the key since `change` has read it. redis-py
    raises the same WatchError if the connection was lost or refused meanwhile. Then it is repeated
    for PATIENCE_S only: a replica, which takes no writes, would be asked for ever.

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
