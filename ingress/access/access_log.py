"""Counts the answers of a listener and logs them, and says which headers go with all of them.

Source: TorchServe 0.12 `NettyUtils.sendHttpResponse`, `HttpRequestHandler`.
"""

import logging
import time
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from batching.settings.settings import Settings
from ingress.http1.exchange import Application, Exchange, Header

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


class AccessLog:
    """Counts each answer, and logs it where that is asked for."""

    def __init__(self, count: Callable[[int], None], *, is_logging: bool = False) -> None:
        self._count = count
        self._is_logging = is_logging

    def on_answered(self, exchange: Exchange) -> None:
        """Counts an answer that an application has made."""
        self._count(exchange.status)
        if self._is_logging:
            milliseconds = (time.perf_counter() - exchange.started_s) * 1000
            access_log.info("%s %d %d", _request_line(exchange), exchange.status, milliseconds)

    def on_refused(self, client: str, status: int) -> None:
        """Counts an answer that the connection made without the application."""
        self._count(status)
        if self._is_logging:
            access_log.info('/%s "-" %d 0', client, status)


def answering_preflights(app: Application) -> Application:
    """Returns the application, but what a browser asks before a page's request needs no key."""

    def answer(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        if exchange.method != "OPTIONS" or not _is_keyless(exchange):
            return app(exchange)
        exchange.respond(HTTPStatus.NO_CONTENT, [], b"")
        return None

    return answer


def _is_keyless(exchange: Exchange) -> bool:
    """Returns whether a browser asks this before a page's request, which it does without a key.

    Source: Fetch, "CORS-preflight fetch".
    """
    names = exchange.fields
    return "access-control-request-method" in names and "authorization" not in names


def _request_line(exchange: Exchange) -> str:
    # The path comes percent-decoded, line breaks included. It is quoted again, or a client could
    # write lines of its own into the log.
    path = quote(exchange.path, safe="/:@!$&'()*+,;=~")
    query = f"?{exchange.query}" if exchange.query else ""
    return f'/{exchange.client} "{exchange.method} {path}{query} HTTP/{exchange.http_version}"'
