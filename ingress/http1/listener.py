"""Listens on an address, and serves the connections that come."""

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from batching.errors import BadRequest, ServeError
from batching.process.retries import Reminder
from batching.settings.settings import Settings, UnusableNow
from ingress.http1.connection import HttpConnection
from ingress.http1.exchange import Application, Exchange, Header, HttpAnswer

log = logging.getLogger(__name__)

BACKLOG = 1024

# How much of an answer the kernel takes ahead of its client. By default that is megabytes, and then
# nothing until a third of them is gone: a slow reader would look like one that does not read.
UNSENT_BYTES = 64 * 1024

# What is read at once. The rest of a body that has more goes to a place of its own.
_READ_BYTES = 16 * 1024

# The server warns when this few files can still be opened. A new one gets the lowest free number.
_SPARE_FILES = 16

_ONE_HOST = "Send one Host header with each request, such as `Host: example.com`."
_USUAL = Settings()

# Takes the status, the client's address and port, and None for bytes that are no request.
NoteAnswer = Callable[[int, str, Exchange | None], None]


class AddressUnavailable(UnusableNow):
    """Says that the address is in use, or not this machine's; that may change."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: an IP address and a port, or the path of a unix socket."""

    host: str
    port: int
    socket_path: Path | None = None
    is_tls: bool = False

    @property
    def is_private(self) -> bool:
        """Returns whether only this machine's own users can connect."""
        return self.socket_path is not None or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


class Listener:
    """Listens on an address, on the running loop; holds limits, application and open connections.

    `error_answer`: to requests that the application never sees. `note_answer` is told of each
    answer, sent or not. `added_headers` go with every answer; their names are in lower case.
    """

    def __init__(
        self,
        address: Address,
        app: Application,
        error_answer: Callable[[ServeError], HttpAnswer],
        *,
        note_answer: NoteAnswer = lambda status, client, exchange: None,
        added_headers: Sequence[Header] = (),
        settings: Settings = _USUAL,
        tls: ssl.SSLContext | None = None,
        shares_port: bool = False,
    ) -> None:
        self.address = address
        self.error_answer = error_answer
        self.note_answer = note_answer
        self.added_headers = tuple(added_headers)
        self.settings = settings
        self.scheme = "https" if address.is_tls and tls is not None else "http"
        # Shared, as what one connection reads is taken before another one reads.
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.is_draining = False
        self.connections: set[HttpConnection] = set()
        self._app = app
        self._shares_port = shares_port
        self._tls = tls if address.is_tls else None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio alone does not keep them
        self._closed = asyncio.Event()
        self._senders: list[HttpConnection] = []
        self._reminder = Reminder()

    async def start(self) -> None:
        """Begins to accept connections.

        Raises:
            AddressUnavailable: the address is in use, or not this machine's.
        """
        try:
            bound = self._bind()
        except OSError as error:
            words = f"cannot listen on {self.address}: {error.strerror}"
            raise AddressUnavailable(words) from error
        make = asyncio.get_running_loop().create_server
        if self.address.socket_path is not None:
            make = asyncio.get_running_loop().create_unix_server  # type: ignore[assignment]
        self._server = await make(
            lambda: HttpConnection(self), sock=bound, ssl=self._tls, backlog=BACKLOG
        )

    def stop(self) -> None:
        """Accepts no more connections, and closes each now or with its last answer."""
        if self._server is not None:
            self._server.close()
            if self.address.socket_path is not None:
                self.address.socket_path.unlink(missing_ok=True)
        self.is_draining = True
        for connection in list(self.connections):
            connection.close_if_idle()
        self.forget()

    def serve(self, exchange: Exchange) -> None:
        if not _names_one_host(exchange):
            exchange.respond(*self.error_answer(BadRequest(_ONE_HOST)))
            return
        try:
            rest = self._app(exchange)
        except Exception as error:  # the outermost frame
            _fail(exchange, error)
        else:
            if rest is not None:
                task = asyncio.get_running_loop().create_task(_finish(exchange, rest))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def add(self, connection: HttpConnection, sock: Any) -> None:
        """Adds a connection; warns before libuv, for want of files, closes each new one at once."""
        self.connections.add(connection)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_near = limit != resource.RLIM_INFINITY and sock.fileno() >= limit - _SPARE_FILES
        if is_near and self._reminder.is_due(""):
            log.warning("hardly a file can be opened limit=%d", limit)

    def send_soon(self, connection: HttpConnection) -> None:
        """Has the connection `send` after everything that is ready to run by now."""
        if not self._senders:
            asyncio.get_running_loop().call_soon(self._send)
        self._senders.append(connection)

    async def wait_closed(self) -> None:
        """Waits, after `stop`, until all requests are answered and all connections closed."""
        await self._closed.wait()

    def forget(self, connection: HttpConnection | None = None) -> None:
        """Removes a connection, and looks whether a drain is over."""
        self.connections.discard(connection)
        if self.is_draining and not self.connections:
            self._closed.set()

    def _send(self) -> None:
        senders, self._senders = self._senders, []
        for connection in senders:
            connection.send()

    def _bind(self) -> socket.socket:
        path = self.address.socket_path
        family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
        bound = socket.socket(family if path is None else socket.AF_UNIX)
        try:
            if path is not None:
                with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
                    try:
                        probe.connect(str(path))
                    except ConnectionRefusedError:
                        path.unlink()  # a killed server has left it
                bound.bind(str(path))
                return bound
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._shares_port:  # the kernel spreads connections over its listeners (ADR 0021)
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Connections inherit it: the kernel ends one whose client takes in nothing.
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                milliseconds = int(self.settings.unread_timeout_s * 1000)
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            if family is socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind((self.address.host, self.address.port))
        except BaseException:
            bound.close()
            raise
        return bound


def _names_one_host(exchange: Exchange) -> bool:
    # RFC 9112, 3.2: with two hosts, a proxy may have gone by the other one.
    if "host" not in exchange.fields:
        return exchange.http_version < "1.1"
    # Mostly no header comes twice, which costs less to see.
    if len(exchange.fields) == len(exchange.headers):
        return True
    return [name.lower() for name, _ in exchange.headers].count("host") == 1


async def _finish(exchange: Exchange, rest: Coroutine[Any, Any, None]) -> None:
    try:
        await rest
    except Exception as error:  # the outermost frame
        _fail(exchange, error)
    else:
        if exchange.status == 0:
            _fail(exchange, None)


def _fail(exchange: Exchange, error: Exception | None) -> None:
    log.error("request failed", exc_info=error)
    if exchange.status == 0:
        exchange.respond(HTTPStatus.INTERNAL_SERVER_ERROR, [], b"")
