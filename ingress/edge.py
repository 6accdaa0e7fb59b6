"""The outermost layer of every listener: each answer is counted, may be logged, and gets CORS.

Source: TorchServe 0.12 `NettyUtils.sendHttpResponse`, `HttpRequestHandler`; contract 0.3 and 0.7.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import quote

from batching.settings import Settings
from ingress.rsgi import HttpProtocol, HttpScope, RsgiApp, StreamTransport

# The names by which operators of TorchServe find these lines.
access_log = logging.getLogger("ACCESS_LOG")

Header = tuple[str, str]


def cors_headers(settings: Settings) -> list[Header]:
    """The three headers, if all three are configured, as in TorchServe."""
    headers = [
        ("access-control-allow-origin", settings.cors_allowed_origin),
        ("access-control-allow-methods", settings.cors_allowed_methods),
        ("access-control-allow-headers", settings.cors_allowed_headers),
    ]
    return headers if all(value for _, value in headers) else []


class Edge:
    """An RSGI application around that of a listener."""

    def __init__(
        self,
        app: RsgiApp,
        count: Callable[[int], None],
        *,
        added_headers: Sequence[Header] = (),
        is_logging: bool = False,
    ) -> None:
        self._app = app
        self._count = count
        self._added_headers = list(added_headers)
        self._is_logging = is_logging

    async def __call__(self, scope: HttpScope, proto: HttpProtocol) -> None:
        """The request is answered, and the answer's status known."""
        if scope.proto != "http":
            await self._app(scope, proto)
            return
        seen = _SeenProtocol(proto, self._added_headers)
        started_s = time.perf_counter()
        try:
            await self._app(scope, seen)
        finally:
            self._count(seen.status)
            if self._is_logging:
                milliseconds = (time.perf_counter() - started_s) * 1000
                access_log.info("%s %d %d", _request_line(scope), seen.status, milliseconds)


class _SeenProtocol:
    """Granian's protocol object, whose answer passes by here."""

    __slots__ = ("_added_headers", "_proto", "status")

    def __init__(self, proto: HttpProtocol, added_headers: list[Header]) -> None:
        self._proto = proto
        self._added_headers = added_headers
        # What granian answers when the application does not.
        self.status = 500

    def __call__(self) -> Coroutine[Any, Any, bytes]:
        return self._proto()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._proto.__aiter__()

    def client_disconnect(self) -> Coroutine[Any, Any, None]:
        return self._proto.client_disconnect()

    def response_bytes(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        self.status = status
        if self._added_headers:
            headers = [*headers, *self._added_headers]
        self._proto.response_bytes(status, headers, body)

    def response_stream(self, status: int, headers: Sequence[Header]) -> StreamTransport:
        self.status = status
        return self._proto.response_stream(status, [*headers, *self._added_headers])


def _request_line(scope: HttpScope) -> str:
    # The path comes percent-decoded, line breaks included: it is quoted again, or whoever asks
    # could write lines of their own into the log.
    path = quote(scope.path, safe="/:@!$&'()*+,;=~")
    query = f"?{scope.query_string}" if scope.query_string else ""
    return f'/{scope.client} "{scope.method} {path}{query} HTTP/{scope.http_version}"'
