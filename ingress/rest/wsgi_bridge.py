"""Runs WSGI applications on the event loop, and makes exchanges of WSGI requests."""

import asyncio
import contextlib
import io
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any
from wsgiref.types import WSGIApplication

from flask import Response, request

from batching.errors import ServeError
from batching.process.daemon_thread import in_daemon_thread
from batching.settings.settings import Settings
from ingress.access.tokens import Authorizer
from ingress.http1.exchange import Body, Content, Exchange, Header, HttpAnswer
from ingress.torchserve.answers import error_answer

# Per listener: registrations that wait for workers must not keep a probe from its thread.
_THREADS = 32
# The connection writes these itself.
_SERVER_OWNED = frozenset({"content-length", "connection", "server", "date"})


class PlainResponse(Response):
    """Leaves the content type to the answer's headers."""

    default_mimetype = None


class AwaitedExchange(Exchange):
    """Holds a request under a WSGI server, whose thread waits for the answer."""

    def __init__(
        self,
        fields: dict[str, str],
        method: str = "POST",
        path: str = "",
        query: str = "",
        peer: object = None,
    ) -> None:
        headers = list(fields.items())
        super().__init__(peer, method, path, query, "1.1", headers, fields, keeps_alive=False)
        self.answered: Future[HttpAnswer | Response] = Future()

    def respond(self, status: int, headers: Sequence[Header], body: Body) -> None:
        if not self.answered.done():
            self.answered.set_result(HttpAnswer(status, [*headers], body))

    async def respond_in_pieces(
        self, status: int, headers: Sequence[Header], pieces: AsyncIterator[bytes]
    ) -> None:
        """Lets the thread fetch the pieces, until it closes its response."""
        loop, is_closed = asyncio.get_running_loop(), asyncio.Event()

        async def next_piece() -> bytes | None:
            return await anext(pieces, None)

        # An exception closes the client's connection.
        fetched = iter(lambda: asyncio.run_coroutine_threadsafe(next_piece(), loop).result(), None)
        response = PlainResponse(fetched, status=status, headers=[*headers])
        response.call_on_close(partial(loop.call_soon_threadsafe, is_closed.set))
        self.answered.set_result(response)
        await is_closed.wait()


def flask_exchange() -> AwaitedExchange:
    """Returns this thread's request; WSGI has joined the values of repeated headers."""
    fields = {}
    for name, value in request.headers.items():
        with contextlib.suppress(UnicodeDecodeError):
            fields[name.lower()] = value.encode("latin-1").decode()
    # A unix socket has no address.
    client = f"{request.environ.get('REMOTE_ADDR', '')}:0"
    peer = SimpleNamespace(client=client, scheme=request.scheme)
    query = request.query_string.decode("utf-8", "replace")
    return AwaitedExchange(fields, request.method, request.path, query, peer)


class WsgiBridge:
    """Runs a WSGI application in threads, at most `_THREADS` requests at once."""

    def __init__(self, app: WSGIApplication, settings: Settings, authorizer: Authorizer) -> None:
        self._app = app
        self._limits = settings.max_request_size_bytes, settings.body_timeout_s
        self._slots = asyncio.Semaphore(_THREADS)
        self._authorizer = authorizer

    async def __call__(self, exchange: Exchange) -> None:
        authorization = exchange.fields.get("authorization", "")
        try:
            # The application checks again; this check spares reading the body without a key.
            self._authorizer.admit(exchange.method, exchange.path, authorization)
            environ = _environ(exchange, await exchange.read_body(*self._limits))
            async with self._slots:
                answer = await in_daemon_thread(partial(self._answer, environ))
        except ServeError as error:
            answer = error_answer(error)
        exchange.respond(*answer)

    def _answer(self, environ: dict[str, Any]) -> HttpAnswer:
        """Returns the application's whole answer, header names in lower case."""
        response = PlainResponse.from_app(self._app, environ, buffered=True)
        headers = [(name.lower(), value) for name, value in response.headers]
        kept = [header for header in headers if header[0] not in _SERVER_OWNED]
        return HttpAnswer(response.status_code, kept, response.get_data())


def _environ(exchange: Exchange, body: Content) -> dict[str, Any]:
    """Returns the request's environ, with bytes read as Latin-1: PEP 3333."""
    connection = exchange.connection
    server_host, _, server_port = connection.server.rpartition(":")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": exchange.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": _as_latin1(exchange.path),
        "QUERY_STRING": _as_latin1(exchange.query),
        "SERVER_NAME": server_host,
        "SERVER_PORT": server_port,
        "SERVER_PROTOCOL": f"HTTP/{exchange.http_version}",
        "REMOTE_ADDR": connection.client.rpartition(":")[0].strip("[]"),
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
        key = name.upper().replace("-", "_")
        # An environ cannot tell an underscore from a dash, which a trusted header may have.
        if "_" not in name and key not in ("CONTENT_LENGTH", "TRANSFER_ENCODING"):
            key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
            before = f"{environ[key]}," if key in environ else ""
            environ[key] = before + _as_latin1(value)
    return environ


def _as_latin1(text: str) -> str:
    return text.encode("utf-8", "replace").decode("latin-1")
