"""Reads which proxies are believed."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Self

SOCKETS = "unix"


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
