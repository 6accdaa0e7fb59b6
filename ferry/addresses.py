"""Listener addresses as config.properties spells them: `http://host:port` or `unix:/path`."""

import errno
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

import click

from ferry.options import UnusableSettings


def check_free(addresses: Iterable[str]) -> None:
    """Each address could be listened on a moment ago.

    The listener itself may still lose a race for it; this only turns the usual mistake, a second
    server, into a sentence before anything has been started.

    Raises:
        ClickException: one is in use, or is not an address of this machine.
    """
    for address in dict.fromkeys(addresses):
        if (place := _host_and_port(address)) is not None:
            _bind_once(address, *place)


def _host_and_port(address: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError as error:
        raise UnusableSettings(f"not an address like http://host:port: {address}") from error
    # Without a port, or a unix socket: the listener knows its own defaults.
    return None


def _bind_once(address: str, host: str, port: int) -> None:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: a socket in TIME_WAIT does not count as in use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise click.ClickException(
                f"{address} is in use: is another server running? Stop it, or choose other ports, "
                "for example with `ferry up --port-base 18080`"
            ) from error
        raise click.ClickException(f"cannot listen on {address}: {error.strerror}") from error
