"""Listens on an address, and serves the connections that come."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batching.errors import ServeError
from batching.settings.settings import Settings, UnusableNow
from ingress.http1.connection import HttpConnection, HttpHost, NoteAnswer
from ingress.http1.exchange import Answer, Application, Header

BACKLOG = 1024

# How much of an answer the kernel takes ahead of its client. By default that is megabytes, and then
# nothing until a third of them is gone: a slow reader would look like one that does not read.
UNSENT_BYTES = 64 * 1024

_USUAL = Settings()


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


class Listener(HttpHost):
    """Listens on an address, on the running loop."""

    def __init__(
        self,
        address: Address,
        app: Application,
        error_answer: Callable[[ServeError], Answer],
        *,
        note_answer: NoteAnswer = lambda status, client, exchange: None,
        added_headers: Sequence[Header] = (),
        settings: Settings = _USUAL,
        tls: ssl.SSLContext | None = None,
        shares_port: bool = False,
    ) -> None:
        super().__init__(
            app,
            error_answer,
            note_answer,
            scheme="https" if address.is_tls and tls is not None else "http",
            settings=settings,
            added_headers=added_headers,
        )
        self.address = address
        self._shares_port = shares_port
        self._tls = tls if address.is_tls else None
        self._server: asyncio.Server | None = None

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
        """Accepts no more connections; requests in flight go on."""
        if self._server is not None:
            self._server.close()
            if self.address.socket_path is not None:
                self.address.socket_path.unlink(missing_ok=True)
        self.drain()

    def _bind(self) -> socket.socket:
        path = self.address.socket_path
        family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
        bound = socket.socket(family if path is None else socket.AF_UNIX)
        try:
            if path is not None:
                _remove_stale(path)
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


def _remove_stale(path: Path) -> None:
    """Removes a socket file that a killed server has left."""
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
