"""Serves a WSGI application on the event loop, each request in a thread."""

import asyncio
import io
import sys
from typing import Any
from wsgiref.types import WSGIApplication

from batching.errors import ServeError
from batching.process.daemon_thread import in_daemon_thread
from batching.settings.settings import Settings
from ingress.access.tokens import Authorizer
from ingress.http1.exchange import Answer, Exchange
from ingress.rest.responses import PlainResponse
from ingress.torchserve.answers import error_answer

# The connection writes these itself.
_SERVER_OWNED = frozenset({"content-length", "connection", "server", "date"})


class WsgiBridge:
    """Runs a WSGI application in threads, at most `max_threads` requests at once."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        settings: Settings,
        max_threads: int,
        authorizer: Authorizer,
    ) -> None:
        self._app = app
        self._limits = settings.max_request_size_bytes, settings.body_timeout_s
        self._slots = asyncio.Semaphore(max_threads)
        self._authorizer = authorizer

    async def __call__(self, exchange: Exchange) -> None:
        """Answers the request."""
        headers = exchange.fields
        try:
            # The application checks again. Here, no body is read for a client without a key.
            self._authorizer.admit(exchange.method, exchange.path, headers.get("authorization", ""))
            body = await exchange.read_body(*self._limits)
            environ = make_environ(exchange, body)
            async with self._slots:
                answer = await in_daemon_thread(lambda: _answer(self._app, environ))
        except ServeError as error:
            answer = error_answer(error)
        exchange.respond(*answer)


def make_environ(exchange: Exchange, body: bytes | bytearray) -> dict[str, Any]:
    """Returns the environ of this request; by PEP 3333, strings are bytes read as Latin-1."""
    connection = exchange.connection
    server_host, _, server_port = connection.server.rpartition(":")
    client_host, _, client_port = connection.client.rpartition(":")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": exchange.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": _as_latin1(exchange.path),
        "QUERY_STRING": _as_latin1(exchange.query),
        "SERVER_NAME": server_host,
        "SERVER_PORT": server_port,
        "SERVER_PROTOCOL": f"HTTP/{exchange.http_version}",
        "REMOTE_ADDR": client_host.strip("[]"),
        "REMOTE_PORT": client_port,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": connection.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        "CONTENT_LENGTH": str(len(body)),
    }
    for name, value in exchange.headers:
        _add_header(environ, name, _as_latin1(value))
    return environ


def _answer(app: WSGIApplication, environ: dict[str, Any]) -> Answer:
    """Returns the application's whole answer, header names in lower case."""
    response = PlainResponse.from_app(app, environ, buffered=True)
    headers = [(name.lower(), value) for name, value in response.headers]
    kept = [header for header in headers if header[0] not in _SERVER_OWNED]
    return Answer(response.status_code, kept, response.get_data())


def _add_header(environ: dict[str, Any], name: str, value: str) -> None:
    # In an environ, an underscore could not be told from the dash of a trusted header.
    key = name.upper().replace("-", "_")
    if "_" in name or key in ("CONTENT_LENGTH", "TRANSFER_ENCODING"):
        return
    if key != "CONTENT_TYPE":
        key = f"HTTP_{key}"
    environ[key] = f"{environ[key]},{value}" if key in environ else value


def _as_latin1(text: str) -> str:
    return text.encode("utf-8", "replace").decode("latin-1")
