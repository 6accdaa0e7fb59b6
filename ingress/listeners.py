"""The one table of listeners: which address serves what, and who may reach it."""

import asyncio
import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server

from batching.settings import Settings, SettingsError
from ingress.openapi import Role
from ingress.rsgi import RsgiApp
from ingress.unread_limit import limit_unread

BACKLOG = 1024

# For the head of a request, and for the pause between two of them: granian has one limit for both.
# Longer than the 60 s for which nginx and cloud load balancers keep an idle connection, or they
# would send requests into connections that this end is closing.
SILENCE_TIMEOUT_S = 65.0

# For so long, a client may take in nothing of an answer that is there for it.
UNREAD_TIMEOUT_S = 60.0

_ACCEPT_TIMEOUT_S = 5.0
_ACCEPT_POLL_S = 0.005

_DEFAULT_PORTS = {
    "http": {Role.INFERENCE: 80, Role.MANAGEMENT: 8081, Role.METRICS: 8082},
    "https": {Role.INFERENCE: 443, Role.MANAGEMENT: 8444, Role.METRICS: 8445},
}

# granian's lines go the way of ours; below error level it only repeats what we log ourselves.
_GRANIAN_LOGGING = {
    "formatters": {},
    "handlers": {},
    "loggers": {"_granian": {"handlers": [], "propagate": True}},
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: an IP address and a port, or the path of a unix socket."""

    host: str
    port: int
    socket_path: Path | None = None
    is_tls: bool = False

    @property
    def is_private(self) -> bool:
        """Whether only this machine's own users can connect."""
        return self.socket_path is not None or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """What a listener with `https://` proves itself with; PEM files."""

    certificate_file: Path
    private_key_file: Path


def listener_table(settings: Settings) -> dict[Address, frozenset[Role]]:
    """Each address with what it serves; roles with equal addresses share a listener.

    Raises:
        SettingsError: an address that cannot be listened on, or management open to the network.
    """
    table: dict[Address, frozenset[Role]] = {}
    for role, text in _address_texts(settings).items():
        address = parse_address(text, role)
        table[address] = table.get(address, frozenset()) | {role}
    tls_files(settings)
    for address, roles in table.items():
        if Role.MANAGEMENT in roles and not address.is_private:
            _require_open_management(address, settings)
    return table


def tls_files(settings: Settings) -> Tls | None:
    """The files for listeners with `https://`; None when there are none.

    Raises:
        SettingsError: one of the two is missing, or not a file.
    """
    certificate, key = settings.certificate_file, settings.private_key_file
    if not any(urlsplit(text).scheme == "https" for text in _address_texts(settings).values()):
        return None
    # TorchServe makes a certificate for itself; whoever trusts that one trusts anybody's.
    if certificate is None or key is None:
        raise SettingsError("https:// needs certificate_file and private_key_file")
    for path in (certificate, key):
        if not path.is_file():
            raise SettingsError(f"no such file for https://: {path}")
    return Tls(certificate, key)


def parse_address(text: str, role: Role) -> Address:
    """The address that config.properties spells `http[s]://host:port` or `unix:/path`.

    Raises:
        SettingsError: it is something else, or its host has no address.
    """
    parts = urlsplit(text)
    if parts.scheme == "unix" and parts.path:
        return Address("", 0, Path(parts.path))
    try:
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{role}_address={text!r}: the port is not a number") from error
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise SettingsError(f"{role}_address={text!r}: write http[s]://host:port or unix:/path")
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(f"{role}_address={text!r}: the host has no address") from error
    # IPv4 first: `localhost` has meant 127.0.0.1 to TorchServe's clients.
    hosts = sorted((str(place[0]) for *_, place in found), key=lambda host: ":" in host)
    if port is None:
        port = _DEFAULT_PORTS[parts.scheme][role]
    return Address(hosts[0], port, is_tls=parts.scheme == "https")


class Listener:
    """One granian server on the running loop."""

    def __init__(
        self,
        address: Address,
        app: RsgiApp,
        *,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
        unread_timeout_s: float = UNREAD_TIMEOUT_S,
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        self._unread_timeout_s = unread_timeout_s
        tls = tls if address.is_tls else None
        self._server = Server(
            app,
            address.host or "127.0.0.1",
            address.port,
            uds=address.socket_path,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(header_read_timeout=int(silence_timeout_s * 1000)),
            websockets=False,
            backlog=BACKLOG,
            ssl_cert=None if tls is None else tls.certificate_file,
            ssl_key=None if tls is None else tls.private_key_file,
            ssl_protocol_min=SSLProtocols.tls12,
            log_level=LogLevels.error,
            log_dictconfig=_GRANIAN_LOGGING,
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connections are accepted.

        Raises:
            SettingsError: the address is in use, or not ours.
        """
        self._check_free()
        self._serving = asyncio.create_task(self._server.serve())
        deadline = asyncio.get_running_loop().time() + _ACCEPT_TIMEOUT_S
        while not await self._accepts():
            is_late = asyncio.get_running_loop().time() > deadline
            if is_late or self._serving.done():
                raise SettingsError(f"cannot listen on {self.address}")
            await asyncio.sleep(_ACCEPT_POLL_S)
        if self.address.socket_path is None:
            limit_unread(self.address.port, self._unread_timeout_s)

    def stop(self) -> None:
        """No new connection is accepted; requests in flight go on."""
        self._server.stop()  # type: ignore[no-untyped-call]

    async def wait_closed(self) -> None:
        """All requests have been answered and all connections closed."""
        if self._serving is not None:
            with contextlib.suppress(Exception):
                await asyncio.shield(self._serving)

    def _check_free(self) -> None:
        # granian shares ports between processes (SO_REUSEPORT): a forgotten second server would
        # silently get half of the requests. A plain bind finds it.
        if self.address.socket_path is not None:
            return
        family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.address.host, self.address.port))
            except OSError as error:
                raise SettingsError(f"cannot listen on {self.address}: {error.strerror}") from error

    async def _accepts(self) -> bool:
        path, host = self.address.socket_path, self.address.host
        try:
            if path is not None:
                _, writer = await asyncio.open_unix_connection(path)
            else:
                _, writer = await asyncio.open_connection(host, self.address.port)
        except OSError:
            return False
        writer.close()
        return True


def _address_texts(settings: Settings) -> dict[Role, str]:
    texts = {
        Role.INFERENCE: settings.inference_address,
        Role.MANAGEMENT: settings.management_address,
        Role.METRICS: settings.metrics_address,
    }
    if not settings.enable_metrics_api:
        del texts[Role.METRICS]
    return texts


def _require_open_management(address: Address, settings: Settings) -> None:
    if not settings.allow_open_management and settings.keys_path() is None:
        raise SettingsError(
            f"management_address={address} is reachable from other machines, and whoever reaches "
            "it can run code here. Use 127.0.0.1, or ask for tokens with token_authorization=true, "
            "or set allow_open_management=true if the network itself keeps others out."
        )
