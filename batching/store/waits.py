"""The waits of a worker: idle for work, and as the collector for a full batch."""

import contextlib
import socket
import time
from typing import Any

from batching.store.clients import BLOCK_S
from batching.store.held_connections import Client, drop_if_lost
from batching.store.redis_errors import AWAY


class Wakeups:
    """Tokens in a list, each of which wakes one idle worker. One wait at a time."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._pool: Any = client.connection_pool
        self._name = name
        self._waiting: Any = None
        self._is_interrupted = False

    def wait(self, timeout_s: float) -> bool:
        """Returns true once there may be work; false after `timeout_s`, or a tick of Redis later.

        Raises:
            RedisError, OSError: a token may have been lost.
        """
        # Not by `blpop`, as `interrupt` needs the connection.
        connection = self._pool.get_connection()
        try:
            self._waiting = connection
            return bool(
                connection.retry.call_with_retry(
                    lambda: self._pop(connection, timeout_s), lambda _: connection.disconnect()
                )
            )
        except AWAY:
            connection.disconnect()
            if not self._is_interrupted:
                raise
            return True  # as a token may have been on its way
        finally:
            self._waiting = None
            self._pool.release(connection)

    def interrupt(self) -> None:
        """Ends the wait now, and each later one at once; safe in a signal handler.

        A wait that was cut short returns true, so that a token that came just then is passed on.
        """
        self._is_interrupted = True
        _hang_up(self._waiting)

    def wake_one(self) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.rpush(self._name, "1")
            pipe.expire(self._name, 60)
            pipe.execute()

    def _pop(self, connection: Any, timeout_s: float) -> bool:
        if self._is_interrupted:
            return False
        connection.send_command("BLPOP", self._name, timeout_s)
        return connection.read_response() is not None


class ParkedPop:
    """A blocking pop whose wait ends by the local clock, to the millisecond.

    When the wait ends early the pop stays parked on its own connection and the next wait resumes
    it. Only for lists with one reader: an element may arrive between two waits.
    """

    def __init__(self, client: Client, name: str, *, block_s: float = BLOCK_S) -> None:
        self._block_s = block_s
        self._pool: Any = client.connection_pool
        self._name = name
        self._connection: Any = None
        self._is_parked = False
        self.is_interrupted = False

    def interrupt(self) -> None:
        """Ends the wait now, and each later one at once; safe in a signal handler."""
        self.is_interrupted = True
        _hang_up(self._connection)

    def wait(self, timeout_s: float) -> bool:
        """Returns true once an element was popped; false after `timeout_s` or an interruption.

        Raises:
            RedisError, OSError: an element may have been lost.
        """
        end = time.monotonic() + timeout_s
        try:
            while (left_s := end - time.monotonic()) > 0:
                self._park()
                if self.is_interrupted or not self._connection.can_read(timeout=left_s):
                    return False
                self._is_parked = False
                if self._connection.read_response() is not None:
                    return True
        except BaseException as error:
            if self._connection is not None:
                self._connection.disconnect()
                self._pool.release(self._connection)
            self._connection, self._is_parked = None, False
            if not (isinstance(error, AWAY) and self.is_interrupted):
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


def _hang_up(connection: Any) -> None:
    """Ends a blocking read on this connection; safe in a signal handler."""
    if (opened := getattr(connection, "_sock", None)) is not None:
        with contextlib.suppress(OSError):
            # Not its own `shutdown`, which takes a TLS session from under the read.
            socket.socket.shutdown(opened, socket.SHUT_RDWR)
