"""Makes requests of the records that a claim brought, and of bodies in keys of their own."""

import logging
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from batching.protocol import Claimed, Owned, ProtocolError, Request
from batching.store.held_connections import HeldConnection
from batching.store.keys import VersionKeys
from batching.store.open_records import read_record

log = logging.getLogger(__name__)


class RequestReader:
    """Reads claimed requests; raises redis' own errors, and may be called again."""

    def __init__(self, connection: HeldConnection, keys: VersionKeys) -> None:
        self._connection = connection
        self._keys = keys

    def read(self, now_us: int, fields: Sequence[bytes]) -> tuple[list[Claimed], list[Owned]]:
        """Returns the requests, and what is owned of those that cannot be read.

        Args:
            now_us: the time of the claim, by Redis' clock.
            fields: each request's id, and then its record.
        """
        records = []
        for name, text in zip(fields[0::2], fields[1::2], strict=True):
            records.append((name.decode(), read_record(text)))
        requests = self._requests((name, record.wire) for name, record in records)
        items, unreadable = [], []
        for (request_id, record), request in zip(records, requests, strict=True):
            owned = Owned(request_id, record.attempts + 1, record.ingress_id)
            if request is None:
                unreadable.append(owned)
            else:
                # Not below zero, where Redis' clock has stepped back meanwhile.
                waited_us = max(0, now_us - record.queued_us + record.age_us)
                items.append(Claimed(owned, waited_us, request))
        return items, unreadable

    def read_again(self, items: Sequence[Claimed]) -> list[Claimed]:
        """Returns the requests as they were claimed; one that is gone stays as it is."""
        ids = [item.request_id for item in items]
        records = self._connection.call(("HMGET", self._keys.open, *ids))
        wires = [None if record is None else read_record(record).wire for record in records]
        requests = self._requests(zip(ids, wires, strict=True))
        return [
            item if request is None else replace(item, request=request)
            for item, request in zip(items, requests, strict=True)
        ]

    def _requests(self, wires: Iterable[tuple[str, bytes | None]]) -> list[Request | None]:
        """Returns the requests; None for one that cannot be read.

        Args:
            wires: their ids and bytes; empty for those in keys of their own, None for those that
                are gone.
        """
        requests: list[Request | None] = []
        large: list[tuple[int, str]] = []
        for request_id, wire in wires:
            if wire == b"":
                large.append((len(requests), request_id))
                requests.append(None)
            else:
                requests.append(_request(request_id, wire))
        if large:
            names = [self._keys.body_prefix + request_id for _, request_id in large]
            bodies = self._connection.fetch(names)
            for (place, request_id), body in zip(large, bodies, strict=True):
                requests[place] = _request(request_id, body)
        return requests


def _request(request_id: str, wire: bytes | bytearray | None) -> Request | None:
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
