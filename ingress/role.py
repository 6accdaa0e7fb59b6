"""Names the three APIs, and reads their addresses from the settings."""

import socket
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from batching.settings.settings import Settings, SettingsError
from ingress.http1.listener import Address, AddressUnavailable


class Role(StrEnum):
    INFERENCE = "inference"
    MANAGEMENT = "management"
    METRICS = "metrics"


_DEFAULT_PORTS = {
    "http": {Role.INFERENCE: 80, Role.MANAGEMENT: 8081, Role.METRICS: 8082},
    "https": {Role.INFERENCE: 443, Role.MANAGEMENT: 8444, Role.METRICS: 8445},
}


def listener_table(settings: Settings) -> dict[Address, frozenset[Role]]:
    """Returns address -> roles; roles with equal addresses share a listener.

    Raises:
        SettingsError: an address cannot be used, or management would be open to the network.
    """
    table: dict[Address, frozenset[Role]] = {}
    for name, written in settings.addresses().items():
        role = Role(name)
        address = parse_address(written, role)
        table[address] = table.get(address, frozenset()) | {role}
    may_be_open = settings.allow_open_management or settings.keys_path() is not None
    for address, roles in table.items():
        if Role.MANAGEMENT in roles and not address.is_private and not may_be_open:
            raise SettingsError(
                f"management_address={address} is reachable from other machines, and a client that "
                "reaches it can run code here. Use 127.0.0.1, or ask for tokens with "
                "token_authorization=true, or set allow_open_management=true if the network itself "
                "keeps others out."
            )
    return table


def parse_address(written: str, role: Role) -> Address:
    """Parses an address of config.properties: `http[s]://host:port` or `unix:/path`.

    Raises:
        SettingsError: it has another form, or its host has no address.
    """
    try:
        parts = urlsplit(written)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{role}_address={written!r}: {error}") from error
    if parts.scheme == "unix" and parts.path:
        return Address("", 0, Path(parts.path))
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise SettingsError(f"{role}_address={written!r}: write http[s]://host:port or unix:/path")
    try:
        infos = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter: a name longer than names may be
        complaint = f"{role}_address={written!r}: the host has no address ({error})"
        raise AddressUnavailable(complaint) from error
    # IPv4 first: to TorchServe's clients, `localhost` means 127.0.0.1.
    hosts = sorted((str(sockaddr[0]) for *_, sockaddr in infos), key=lambda host: ":" in host)
    if port is None:
        port = _DEFAULT_PORTS[parts.scheme][role]
    return Address(hosts[0], port, is_tls=parts.scheme == "https")


def has_page(settings: Settings) -> bool:
    """Returns whether the server shows browsers the page and the API document.

    Raises:
        SettingsError: the inference address has another form.
    """
    if settings.page == "off" or settings.keys_path() is not None:  # browsers send no key
        return False
    address = parse_address(settings.inference_address, Role.INFERENCE)
    # A unix socket is for a proxy, whose clients may be anybody.
    return settings.page == "on" or (address.is_private and address.socket_path is None)
