"""A blocking pop whose wait ends by the local clock."""

import time
from typing import Any

from batching.store.client_types import Client
from batching.store.clients import BLOCK_S
from batching.store.connections.lost_connections import drop_if_lost
from batching.store.redis_errors import AWAY
from batching.store.worker_side.hang_up import hang_up


class ParkedPop:
    """A blocking pop whose wait ends by the local clock, to the millisecond.

    When the wait ends early the pop stays parked on its own connection and the next wait resumes
    it. Only for lists that nobody else reads: an element may arrive while nobody waits.
    """

    def __init__(self, client: Client, name: str, *, block_s: float = BLOCK_S) -> None:
        self._block_s = block_s
        self._pool = client.connection_pool
        self._name = name
        self._connection: Any = None
        self._is_parked = False
        self.is_interrupted = False

    def interrupt(self) -> None:
        """Ends the wait now, and each later one at once; safe in a signal handler."""
        self.is_interrupted = True
        hang_up(self._connection)

    def wait(self, timeout_s: float) -> bool:
        """True once an element was popped, false after `timeout_s` or when it is interrupted.

        Raises:
            RedisError, OSError: an element may have been lost.
        """
        try:
            return self._wait(timeout_s)
        except AWAY:
            if not self.is_interrupted:
                raise
            return False

    def _wait(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        try:
            while (left_s := end - time.monotonic()) > 0:
                self._park()
                if self.is_interrupted:
                    return False
                if not self._connection.can_read(timeout=left_s):
                    return False
                self._is_parked = False
                if self._connection.read_response() is not None:
                    return True
        except BaseException:
            self._drop()
            raise
        return False

    def _park(self) -> None:
        if self._is_parked:
            return
        if self._connection is None:
            self._connection = self._pool.get_connection()
        else:
            drop_if_lost(self._connection)
        self._connection.send_command("BLPOP", self._name, self._block_s)
        self._is_parked = True

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._pool.release(self._connection)
        self._connection = None
        self._is_parked = False
