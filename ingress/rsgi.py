"""The part of granian's RSGI interface that the ingress uses, typed.

granian's own stubs leave the protocol object untyped; the specification is RSGI 1.5.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

__all__ = ["HttpProtocol", "HttpScope", "ProtocolClosed", "RsgiApp", "StreamTransport"]


class _Headers(Protocol):
    def items(self) -> list[tuple[str, str]]:
        """Names in lower case, duplicates in order; values that are not UTF-8 are left out."""
        ...


class HttpScope(Protocol):
    """What is known of a request before its body."""

    proto: str
    http_version: str
    server: str
    client: str
    scheme: str
    method: str
    path: str
    query_string: str

    @property
    def headers(self) -> _Headers:
        """The request's headers; each look is a copy."""
        ...


class StreamTransport(Protocol):
    """Where the pieces of an answer go. Takes what it is given, however slow the client is."""

    async def send_bytes(self, data: bytes) -> None:
        """The piece is on its way. Raises ProtocolClosed when the client has gone."""
        ...


class HttpProtocol(Protocol):
    """The body to come, and the way to answer. A status outside 100 to 999 aborts the process."""

    async def __call__(self) -> bytes:
        """The whole body. Raises ProtocolClosed when the connection ends first."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body in chunks. Ends without an error when the connection does."""
        ...

    async def client_disconnect(self) -> None:
        """Returns when the client has gone."""
        ...

    def response_bytes(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """The answer is sent."""
        ...

    def response_stream(self, status: int, headers: Sequence[tuple[str, str]]) -> StreamTransport:
        """The answer's head is sent. It ends, as if whole, when the transport is let go."""
        ...


RsgiApp = Callable[[HttpScope, HttpProtocol], Awaitable[None]]
