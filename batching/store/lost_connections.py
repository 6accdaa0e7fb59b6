"""Connections that are lost although redis-py does not see it.

The server refuses what only another one can do; or an asyncio connection was lost while it was not
being read from.
"""

import functools
from typing import Any

import redis.asyncio.connection

from batching.store.redis_errors import AWAY, NotHere
from batching.store.string_reader import StringParser

# Sent by a server that is a replica now, or starts, or is cut off.
_NOT_HERE = ("CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "UNBLOCKED")
_FULL = "max number of clients reached"


def _noticing_the_wrong_server(parser: Any) -> Any:
    classes = {**parser.EXCEPTION_CLASSES, **dict.fromkeys(_NOT_HERE, NotHere)}
    classes["ERR"] = {**classes["ERR"], _FULL: NotHere}
    return type("Parser", (parser,), {"EXCEPTION_CLASSES": classes})


PARSER = _noticing_the_wrong_server(StringParser)
ASYNC_PARSER = _noticing_the_wrong_server(redis.asyncio.connection.DefaultParser)


def drop_if_lost(connection: Any) -> None:
    """Closes a blocking connection that the server has closed, so that its next use opens it anew.

    No reply may be due on it. Servers with a `timeout` close idle connections.
    """
    try:
        is_stale = connection.can_read()
    except AWAY:
        is_stale = True
    if is_stale:
        connection.disconnect()


class NoticesItsLoss:
    """Makes redis-py's asyncio connections connect anew when the event loop has closed them.

    The kernel ends idle connections to a host that was cut off. redis-py would send on them, since
    the stream has an error and not an end; uvloop then raises a RuntimeError, which no caller
    expects. Nothing was sent, so nothing is repeated.

    A new connection reads the files for TLS anew, as they may have been renewed.
    """

    _writer: Any
    is_elsewhere = False  # for connections that look for their server

    @property
    def transport(self) -> Any:
        return self._writer.transport

    async def _connect(self) -> None:
        if (tls := getattr(self, "ssl_context", None)) is not None:
            tls.context = None  # redis-py's blocking connections keep none
        await super()._connect()  # type: ignore[misc]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self._writer is not None and self._writer.is_closing():
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
        await super().send_packed_command(command, check_health)  # type: ignore[misc]


@functools.cache
def noticing_its_loss(kind: type) -> type:
    """Returns the subclass of this kind of redis-py's asyncio connections that notices its loss."""
    return type(kind.__name__, (NoticesItsLoss, kind), {})
