"""Transactions: changes of a record that was not changed by others since it was read."""

import time
from collections.abc import Callable
from typing import TypeVar

import redis

from batching.store.client_types import Client
from batching.store.redis_errors import UNHEARD

PATIENCE_S = 0.8  # as a submit's
RETRY_S = 0.05

T = TypeVar("T")


def transact(client: Client, change: Callable[[Client], T], name: str) -> T:
    """Executes the commands that `change` pipes in one step; returns what `change` returned.

    `change` is called again whenever the key was changed since it was read. redis-py raises the
    same WatchError if the connection was lost or refused meanwhile; then `change` is called again
    for PATIENCE_S only, as a replica, which takes no writes, would be asked for ever.

    Raises:
        RedisError: the connection's error, or a refusal.
    """
    end_s = time.monotonic() + PATIENCE_S
    with client.pipeline() as pipe:
        while True:
            try:
                pipe.watch(name)
                changed = change(pipe)
                pipe.execute()
            except redis.WatchError as error:
                lost = error.__context__
                if not isinstance(lost, UNHEARD):
                    continue
                if time.monotonic() > end_s:
                    raise lost from None
                time.sleep(RETRY_S)
            else:
                return changed
