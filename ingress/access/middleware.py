"""The outermost layer of every listener: counts each answer, logs it, and adds headers.

Source: TorchServe 0.12 `NettyUtils.sendHttpResponse`, `HttpRequestHandler`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from urllib.parse import quote

from batching.errors import Draining
from batching.settings.settings import Settings
from ingress.http1.exchange import Application, Exchange, Header
from ingress.torchserve.answers import error_answer

# The names by which operators of TorchServe find these lines.
access_log = logging.getLogger("ACCESS_LOG")

# A prediction has the type that its handler gave it, or none. A browser that guessed would run the
# HTML that a handler echoes.
NO_GUESSING: Header = ("x-content-type-options", "nosniff")


def added_headers(settings: Settings) -> list[Header]:
    """Returns the headers that every answer gets beside its own."""
    return [NO_GUESSING, *cors_headers(settings)]


def cors_headers(settings: Settings) -> list[Header]:
    """Returns the three headers, if all three are configured, as in TorchServe."""
    headers = [
        ("access-control-allow-origin", settings.cors_allowed_origin),
        ("access-control-allow-methods", settings.cors_allowed_methods),
        ("access-control-allow-headers", settings.cors_allowed_headers),
    ]
    return headers if all(value for _, value in headers) else []


class AccessMiddleware:
    """Wraps the application of a listener."""

    def __init__(
        self,
        app: Application,
        count: Callable[[int], None],
        *,
        added_headers: Sequence[Header] = (),
        is_logging: bool = False,
        answers_preflights: bool = False,
    ) -> None:
        self._app = app
        self._count = count
        self._added_headers = tuple(added_headers)
        self._is_logging = is_logging
        self._answers_preflights = answers_preflights

    async def __call__(self, exchange: Exchange) -> None:
        """Answers the request and counts it."""
        exchange.added_headers = self._added_headers
        started_s = time.perf_counter()
        try:
            if exchange.method == "OPTIONS" and self._answers_preflights and _is_keyless(exchange):
                exchange.respond(HTTPStatus.NO_CONTENT, [], b"")
            else:
                await self._app(exchange)
        except asyncio.CancelledError:
            # The server ends before the request has come whole.
            if exchange.status == 0:
                error = Draining("The server is shutting down.", retry_after_s=1.0)
                exchange.respond(*error_answer(error))
            raise
        finally:
            # The connection answers 500 when the application answers nothing.
            status = exchange.status or HTTPStatus.INTERNAL_SERVER_ERROR
            self._count(status)
            if self._is_logging:
                milliseconds = (time.perf_counter() - started_s) * 1000
                access_log.info("%s %d %d", _request_line(exchange), status, milliseconds)

    def on_refused(self, client: str, status: int) -> None:
        """Counts an answer that the connection made without the application."""
        self._count(status)
        if self._is_logging:
            access_log.info('/%s "-" %d 0', client, status)


def _is_keyless(exchange: Exchange) -> bool:
    """Returns whether a browser asks this before a page's request, which it does without a key.

    Source: Fetch, "CORS-preflight fetch".
    """
    names = {name for name, _ in exchange.headers}
    return "access-control-request-method" in names and "authorization" not in names


def _request_line(exchange: Exchange) -> str:
    # The path comes percent-decoded, line breaks included. It is quoted again, or a client could
    # write lines of its own into the log.
    path = quote(exchange.path, safe="/:@!$&'()*+,;=~")
    query = f"?{exchange.query}" if exchange.query else ""
    return f'/{exchange.client} "{exchange.method} {path}{query} HTTP/{exchange.http_version}"'
