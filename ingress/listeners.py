"""Reads the addresses of the settings into a table of listeners, and listens on them."""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from batching.settings.settings import Settings, SettingsError, UnusableNow
from ingress.access.certificate import Certificate
from ingress.http1.connection import HttpConnection
from ingress.http1.exchange import Answer, Application, Header
from ingress.http1.host import HttpHost, Observer
from ingress.role import Role
from ingress.torchserve.answers import unclear_host, unknown_method

BACKLOG = 1024

# How much of an answer the kernel takes ahead of its client. By default that is megabytes, and then
# nothing until a third of them is gone: a slow reader would look like one that does not read.
UNSENT_BYTES = 64 * 1024

_USUAL = Settings()

_DEFAULT_PORTS = {
    "http": {Role.INFERENCE: 80, Role.MANAGEMENT: 8081, Role.METRICS: 8082},
    "https": {Role.INFERENCE: 443, Role.MANAGEMENT: 8444, Role.METRICS: 8445},
}


class AddressUnavailable(UnusableNow):
    """The address is in use, or not this machine's; that may change."""


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


def listener_table(settings: Settings) -> dict[Address, frozenset[Role]]:
    """Returns each address with what it serves; roles with equal addresses share a listener.

    Raises:
        SettingsError: an address that cannot be listened on, or management open to the network.
    """
    table: dict[Address, frozenset[Role]] = {}
    for name, text in settings.addresses().items():
        role = Role(name)
        address = parse_address(text, role)
        table[address] = table.get(address, frozenset()) | {role}
    for address, roles in table.items():
        if Role.MANAGEMENT in roles and not address.is_private:
            _require_open_management(address, settings)
    return table


def certificate_of(settings: Settings) -> Certificate | None:
    """Returns the certificate of listeners with `https://`, unopened; None if there are none.

    Raises:
        SettingsError: the certificate or its key is missing, or not a file.
    """
    certificate, key = settings.certificate_file, settings.private_key_file
    if not any(urlsplit(text).scheme == "https" for text in settings.addresses().values()):
        return None
    # TorchServe signs one for itself. A client that trusts such a certificate trusts any.
    if certificate is None or key is None:
        raise SettingsError("https:// needs certificate_file and private_key_file")
    for path in (certificate, key):
        if not path.is_file():
            raise SettingsError(f"no such file for https://: {path}")
    return Certificate(certificate, key)


def parse_address(text: str, role: Role) -> Address:
    """Returns the address that config.properties spells `http[s]://host:port` or `unix:/path`.

    Raises:
        SettingsError: the text is something else, or its host has no address.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{role}_address={text!r}: {error}") from error
    if parts.scheme == "unix" and parts.path:
        return Address("", 0, Path(parts.path))
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise SettingsError(f"{role}_address={text!r}: write http[s]://host:port or unix:/path")
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter: a name longer than names may be
        words = f"{role}_address={text!r}: the host has no address ({error})"
        raise AddressUnavailable(words) from error
    # IPv4 first: `localhost` has meant 127.0.0.1 to TorchServe's clients.
    hosts = sorted((str(place[0]) for *_, place in found), key=lambda host: ":" in host)
    if port is None:
        port = _DEFAULT_PORTS[parts.scheme][role]
    return Address(hosts[0], port, is_tls=parts.scheme == "https")


class Listener:
    """Listens on an address, on the running loop."""

    def __init__(
        self,
        address: Address,
        app: Application,
        observer: Observer,
        *,
        added_headers: Sequence[Header] = (),
        settings: Settings = _USUAL,
        tls: ssl.SSLContext | None = None,
        shares_port: bool = False,
    ) -> None:
        self.address = address
        self._shares_port = shares_port
        self._settings = settings
        self._tls = tls if address.is_tls else None
        scheme = "http" if self._tls is None else "https"
        self._host = HttpHost(
            app,
            observer,
            unknown_method,
            unclear_host,
            scheme=scheme,
            settings=settings,
            added_headers=added_headers,
        )
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
            lambda: HttpConnection(self._host), sock=bound, ssl=self._tls, backlog=BACKLOG
        )

    def stop(self) -> None:
        """Accepts no more connections; requests in flight go on."""
        if self._server is not None:
            self._server.close()
            if self.address.socket_path is not None:
                self.address.socket_path.unlink(missing_ok=True)
        self._host.drain()

    def refuse_incomplete(self, answer: Answer) -> None:
        """Answers the requests whose bodies have not come whole."""
        self._host.refuse_incomplete(answer)

    @property
    def clients(self) -> int:
        """Returns how many connections there are."""
        return len(self._host.connections)

    async def wait_closed(self) -> None:
        """Waits, after `stop`, until all requests are answered and all connections closed."""
        await self._host.wait_closed()

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
                milliseconds = int(self._settings.unread_timeout_s * 1000)
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


def _require_open_management(address: Address, settings: Settings) -> None:
    if not settings.allow_open_management and settings.keys_path() is None:
        raise SettingsError(
            f"management_address={address} is reachable from other machines, and a client that "
            "reaches it can run code here. Use 127.0.0.1, or ask for tokens with "
            "token_authorization=true, or set allow_open_management=true if the network itself "
            "keeps others out."
        )
