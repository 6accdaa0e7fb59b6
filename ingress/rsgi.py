"""The part of granian's RSGI interface that the ingress uses, typed.

granian's own stubs leave the protocol object untyped; the specification is RSGI 1.5.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

__all__ = ["HttpProtocol", "HttpScope", "ProtocolClosed", "RsgiApp"]


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


RsgiApp = Callable[[HttpScope, HttpProtocol], Awaitable[None]]
