"""A connection of one thread's own, for the calls that are made for every batch."""

from collections.abc import Sequence
from typing import Any

import hiredis
from redis.exceptions import NoScriptError

from batching.store.client_types import Client
from batching.store.connections.lost_connections import drop_if_lost
from batching.store.scripts import loader as scripts

Command = tuple[str | int | bytes, ...]


class HeldConnection:
    """As `AsyncHeldConnection`."""

    def __init__(self, client: Client) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None

    def run(self, verb: str, keys: Sequence[str], arguments: Sequence[str | int | bytes]) -> Any:
        """Returns what the script `<verb>.lua` answers.

        Raises:
            RedisError, OSError: it may have been carried out.
        """
        command: Command = ("EVALSHA", scripts.sha(verb), len(keys), *keys, *arguments)
        try:
            return self.call(command)
        except NoScriptError:
            self.call(("SCRIPT", "LOAD", scripts.source(verb)))
            return self.call(command)

    def fetch(self, names: Sequence[str]) -> list[bytearray | None]:
        """Returns the strings under these names, as they were received; None for a missing one.

        Raises:
            RedisError, OSError: Redis did not answer, or refused.
        """
        strings: list[bytearray | None] = self.call(("MGET", *names), disable_decoding=True)
        return strings

    def call(self, command: Command, **options: bool) -> Any:
        """Returns the answer to the command; raises as `run` does."""
        connection = self._ready()
        # Its stub says "tuple of one".
        packed = [hiredis.pack_command(command)]  # type: ignore[arg-type]

        def exchange() -> Any:
            connection.send_packed_command(packed)
            return connection.read_response(**options)

        return connection.retry.call_with_retry(exchange, lambda _: connection.disconnect())

    def _ready(self) -> Any:
        """Returns the connection, checked as the pool checks one that it gives away."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._pool.get_connection()
        connection.connect()
        drop_if_lost(connection)
        return connection
