"""Makes requests of the bytes that a claim brought, and of bodies in keys of their own."""

import logging
from collections.abc import Sequence

from batching.protocol import ProtocolError, Request
from batching.store.connections.held_connection import HeldConnection

log = logging.getLogger(__name__)


class RequestReader:
    """Reads claimed requests; raises redis' own errors, and may be called again."""

    def __init__(self, connection: HeldConnection, body_prefix: str) -> None:
        self._connection = connection
        self._body_prefix = body_prefix

    def read(self, ids: Sequence[str], wires: Sequence[bytes | None]) -> list[Request | None]:
        """Returns the requests; None for one that cannot be read.

        Args:
            ids: of the requests.
            wires: their bytes; empty for those in keys of their own, None for those that are gone.
        """
        large = [name for name, wire in zip(ids, wires, strict=True) if wire == b""]
        bodies = self._bodies(large) if large else {}
        return [
            self._request(name, wire if wire != b"" else bodies[name])
            for name, wire in zip(ids, wires, strict=True)
        ]

    def _bodies(self, ids: Sequence[str]) -> dict[str, bytearray | None]:
        names = [self._body_prefix + request_id for request_id in ids]
        return dict(zip(ids, self._connection.fetch(names), strict=True))

    def _request(self, request_id: str, wire: bytes | bytearray | None) -> Request | None:
        if wire is None:  # its client has left, or Redis was emptied
            log.info("request=%s has no body any more", request_id)
            return None
        try:
            if isinstance(wire, bytearray):
                return Request.received(wire)
            return Request.decode(wire)
        except ProtocolError as error:
            log.error("unreadable request=%s: %s", request_id, error)
            return None
