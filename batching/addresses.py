"""Tells public addresses from addresses inside of a network, to which no client may send us."""

import ipaddress

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# All that IANA has given out as global unicast. `is_global` holds for most other addresses, too; of
# these, some lead to IPv4 (::a.b.c.d, ::ffff:0:a.b.c.d, 64:ff9b:1::/48) or to a site (fec0::/10).
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# Not global by IANA's registry, but global to `ipaddress` in some Pythons that we run on.
_SPECIAL = (ipaddress.IPv6Network("3fff::/20"), ipaddress.IPv4Network("192.0.0.0/24"))


def is_public(address: str) -> bool:
    """Returns whether an address is global unicast; so must be an address embedded in IPv6."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.sixtofour or ip.teredo:
            return False
        inner = ip.ipv4_mapped
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip not in _GLOBAL_UNICAST:
            return False
    is_special = any(ip in network for network in _SPECIAL)
    return ip.is_global and not ip.is_multicast and not is_special
