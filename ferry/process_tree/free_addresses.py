"""Checks that the addresses of a server are free before it is started."""

import errno
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

import click

from ferry.options import UnusableSettings

OTHER_PORTS = "ferry up --port-base 18080"


def check_free(addresses: Iterable[str], other_ports: str = OTHER_PORTS) -> None:
    """Checks that each address is free now, before anything is started.

    Another process may take it before the listener does; this only puts the usual mistake, a second
    server, into a sentence.

    Args:
        addresses: of listeners.
        other_ports: a command that chooses other ones.

    Raises:
        ClickException: an address is in use, or is not one of this machine.
    """
    for address in dict.fromkeys(addresses):
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
            # A unix socket, or an address without a port: the listener knows its own defaults.
            if parts.scheme in ("http", "https") and host and port:
                _bind_once(address, host, port, other_ports)
        except ValueError as error:  # UnicodeError too: a name longer than names may be
            words = f"not an address like http://host:port: {address} ({error})"
            raise UnusableSettings(words) from error


def _bind_once(address: str, host: str, port: int, other_ports: str) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, place = found[0]
        # As of servers: a socket in TIME_WAIT does not count as in use.
        socket.create_server(place, family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise click.ClickException(
                f"{address} is in use: is another server running? Stop it, or choose other ports, "
                f"for example with `{other_ports}`"
            ) from error
        raise click.ClickException(f"cannot listen on {address}: {error.strerror}") from error
