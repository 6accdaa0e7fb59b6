"""Reads which proxies are believed, and under which URL their clients see this server.

Source: X-Forwarded-Proto, X-Forwarded-Host and X-Forwarded-Prefix, as nginx, Envoy and Traefik know
them; they are no standard. `Forwarded` (RFC 7239), which few proxies send, is not read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Self

SOCKETS = "unix"

# Of what a client sends, only this may get into a URL: no user, path, comma or control character.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PREFIX = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)+")
_MOST_PREFIX_CHARS = 256


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Holds the networks of proxies, and whether those that come by a unix socket are some."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    has_sockets: bool = False

    @classmethod
    def of(cls, text: str) -> Self:
        """Reads a comma list of addresses, networks and `unix`.

        Raises:
            ValueError: one of them is none.
        """
        parts = [part.strip() for part in text.split(",") if part.strip()]
        networks = tuple(ip_network(part) for part in parts if part != SOCKETS)
        return cls(networks, SOCKETS in parts)

    def has(self, peer: str) -> bool:
        """Returns whether this address is a proxy's; it is empty for a unix socket."""
        if not peer:
            return self.has_sockets
        if not self.networks:
            return False
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        # A listener for both families sees IPv4 so.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.networks)

    def base_url(self, headers: Mapping[str, str], *, scheme: str, peer: str) -> str:
        """Returns the URL without a slash at the end; what is not well-formed is ignored.

        Args:
            headers: of the request, names in lower case.
            scheme: of the listener.
            peer: the address at the other end of the connection; empty for a unix socket.
        """

        def forwarded(name: str) -> str:
            # A proxy that adds to the header writes behind what its own client has made up.
            return headers.get(f"x-forwarded-{name}", "").rpartition(",")[2].strip()

        host = headers.get("host", "")
        host = host if _HOST.fullmatch(host) else "localhost"
        if not self.has(peer):
            return f"{scheme}://{host}"
        if _HOST.fullmatch(forwarded("host")):
            host = forwarded("host")
        if forwarded("proto").lower() in {"http", "https"}:
            scheme = forwarded("proto").lower()
        prefix = forwarded("prefix").rstrip("/")
        is_plain = len(prefix) <= _MOST_PREFIX_CHARS and _PREFIX.fullmatch(prefix)
        return f"{scheme}://{host}{prefix if is_plain else ''}"
