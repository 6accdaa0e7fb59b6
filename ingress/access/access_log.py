"""Logs the answers of a listener, and adds headers to all of them.

Source: TorchServe 0.12 `NettyUtils.sendHttpResponse`, `HttpRequestHandler`.
"""

import logging
import time
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from batching.settings.settings import Settings
from ingress.http1.exchange import Application, Exchange, Header
from ingress.http1.listener import NoteAnswer

# The names by which operators of TorchServe find these lines.
access_log = logging.getLogger("ACCESS_LOG")

# A prediction has its handler's content type, or none. A browser that guesses the type would run
# HTML that a handler echoes.
NO_GUESSING: Header = ("x-content-type-options", "nosniff")


def cors_headers(settings: Settings) -> list[Header]:
    """Returns the three headers, if all three are configured, as in TorchServe."""
    headers = [
        ("access-control-allow-origin", settings.cors_allowed_origin),
        ("access-control-allow-methods", settings.cors_allowed_methods),
        ("access-control-allow-headers", settings.cors_allowed_headers),
    ]
    return headers if all(value for _, value in headers) else []


def logged(note: NoteAnswer) -> NoteAnswer:
    def note_and_log(status: int, client: str, exchange: Exchange | None) -> None:
        note(status, client, exchange)
        if exchange is None:  # the connection has made the answer by itself
            access_log.info('/%s "-" %d 0', client, status)
            return
        milliseconds = (time.perf_counter() - exchange.started_s) * 1000
        # The path comes percent-decoded, line breaks included. It is quoted again, or a client
        # could write lines of its own into the log.
        target = quote(exchange.path, safe="/:@!$&'()*+,;=~-._")
        target += f"?{exchange.query}" if exchange.query else ""
        line = f'/{client} "{exchange.method} {target} HTTP/{exchange.http_version}"'
        access_log.info("%s %d %d", line, status, milliseconds)

    return note_and_log


def answering_preflights(app: Application) -> Application:
    """Returns the application with preflight requests of browsers answered, without a key.

    Browsers send none with them. Source: Fetch, "CORS-preflight fetch".
    """

    def answer(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        fields = exchange.fields
        is_preflight = exchange.method == "OPTIONS" and "access-control-request-method" in fields
        if not is_preflight or "authorization" in fields:
            return app(exchange)
        exchange.respond(HTTPStatus.NO_CONTENT, [], b"")
        return None

    return answer
