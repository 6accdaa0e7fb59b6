"""The wakeups of a version: tokens in a list, each of which wakes one idle worker."""

from typing import Any

from batching.store.client_types import Client
from batching.store.redis_errors import AWAY
from batching.store.worker_side.hang_up import hang_up


class Wakeups:
    """A token says only that there may be work. One wait at a time."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._pool = client.connection_pool
        self._name = name
        self._waiting: Any = None
        self._is_interrupted = False

    def wait(self, timeout_s: float) -> bool:
        """True once there may be work; false after `timeout_s` without, or a tick of Redis later.

        Raises:
            RedisError, OSError: a token may have been lost.
        """
        # Not by `blpop`: whoever interrupts needs the connection.
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

        A wait that was cut short is true, so that a token that came just then is passed on.
        """
        self._is_interrupted = True
        hang_up(self._waiting)

    def ring(self) -> None:
        """An idle worker is woken."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.rpush(self._name, "1")
            pipe.expire(self._name, 60)
            pipe.execute()

    def _pop(self, connection: Any, timeout_s: float) -> bool:
        if self._is_interrupted:
            return False
        connection.send_command("BLPOP", self._name, timeout_s)
        return connection.read_response() is not None
