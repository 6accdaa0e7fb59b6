"""Facts about the other end of a connection."""

import fcntl
from typing import Any

# Linux's ioctl for the number of bytes that the kernel has not sent yet.
_SIOCOUTQNSD = 0x894B


def is_sent(transport: Any) -> bool:
    """Returns whether all that was written has been sent.

    Asks the kernel, as a TLS transport does not say.
    """
    peer = transport.get_extra_info("socket")
    if peer is None:
        return True  # closed
    try:
        unsent = fcntl.ioctl(peer.fileno(), _SIOCOUTQNSD, bytes(4))
    except OSError:
        return False  # not Linux
    return not any(unsent)


def host_of(place: str) -> str:
    """Returns the host of what `place_of` returned."""
    return place.rpartition(":")[0].strip("[]")


def place_of(address: Any) -> str:
    """Returns host and port of a socket's address; empty for a unix socket."""
    if not isinstance(address, tuple):
        return ""  # a unix socket
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
