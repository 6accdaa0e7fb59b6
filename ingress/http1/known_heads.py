"""Heads of requests that have come before.

Clients send the same head again and again, and to parse it is a tenth of what the ingress does for
an echo. Only what the parser has read before, byte for byte, is known here.
"""

from typing import NamedTuple

from ingress.http1.exchange import Head

MAX_HEADS = 256
MAX_HEAD_BYTES = 2048

_END = b"\r\n\r\n"
# A body in chunks has no length; and nobody's secrets are kept.
_NOT_KEPT = frozenset({"transfer-encoding", "authorization", "cookie", "proxy-authorization"})


class KnownHead(NamedTuple):
    """A head that was read, its length, and that of its request."""

    head: Head
    head_bytes: int
    request_bytes: int


class KnownHeads:
    """A bounded number of them, for all connections of a listener."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}

    def find(self, data: bytes) -> KnownHead | None:
        """The head of the request that `data` is, if it is one and no more."""
        found = self._known.get(_head_of(data))
        return found if found is not None and found.request_bytes == len(data) else None

    def learn(self, data: bytes, head: Head) -> None:
        """The parser, between two requests, has read this head at the start of `data`."""
        raw = _head_of(data)
        names = {name for name, _ in head.headers}
        # Empty lines may stand before a request, and are not its head.
        is_head = raw.startswith(head.method.encode())
        if not is_head or not head.keeps_alive or names & _NOT_KEPT:
            return
        lengths = [int(value) for name, value in head.headers if name == "content-length"]
        if len(self._known) >= MAX_HEADS:
            self._known.clear()
        self._known[raw] = KnownHead(head, len(raw), len(raw) + sum(lengths))


def _head_of(data: bytes) -> bytes:
    end = data.find(_END, 0, MAX_HEAD_BYTES)
    return data[: end + len(_END)] if end > 0 else b""
