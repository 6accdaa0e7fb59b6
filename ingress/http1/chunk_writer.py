"""An answer that is sent in pieces."""

from typing import TYPE_CHECKING

from ingress.http1.exchange import Exchange

if TYPE_CHECKING:
    from ingress.http1.connection import HttpConnection


class ChunkWriter:
    """Where the pieces of an answer go. Without `end` the answer is broken off."""

    def __init__(
        self, connection: "HttpConnection", exchange: Exchange, *, keeps_alive: bool
    ) -> None:
        self._connection = connection
        self._exchange = exchange
        self._keeps_alive = keeps_alive

    async def send(self, piece: bytes) -> None:
        """The piece is on its way, and the client is not far behind.

        Raises:
            ConnectionEnded: it has gone, or has read nothing for too long.
        """
        await self._connection.write(self._exchange, b"%x\r\n%b\r\n" % (len(piece), piece))

    def end(self) -> None:
        """The client knows that it has the whole answer."""
        self._connection.end_stream(self._exchange, keeps_alive=self._keeps_alive)
