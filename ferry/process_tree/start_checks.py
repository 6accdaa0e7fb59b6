"""Checks what a server needs, before any part of it is started."""

import contextlib
import errno
import resource
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

import click

from batching.settings.settings import Settings, SettingsError
from ferry.console import warn
from ferry.options import UnusableSettings

OTHER_PORTS = "ferry up --port-base 18080"
# A node holds two descriptors per worker and an ingress two per connection of a client.
_ENOUGH_FILES = 1_024
# Some programs, which a handler may start, close every descriptor that they might have. Where the
# hard limit is a billion, as in some containers, that takes them minutes.
_MOST_FILES = 1_048_576
# With the last try, a start without a Redis fails within 5 s.
_REDIS_WAIT_S = 2.0


def require_store(settings: Settings) -> None:
    """Checks that the model store is a folder: else each archive would be "not found"."""
    if settings.model_store is not None and not settings.model_store.is_dir():
        raise click.ClickException(f"the model store is not a folder: {settings.model_store}")


def require_redis(settings: Settings) -> None:
    """Checks that the Redis of `redis_url` answers; it may be starting at the same time."""
    # Only here: a server whose Redis is new needs no client in this process.
    from batching.store.server_check import why_away  # noqa: PLC0415 - see above

    try:
        why = why_away(settings, wait_s=_REDIS_WAIT_S)
    except SettingsError as error:
        raise UnusableSettings(str(error)) from error
    if why:
        hint = "Start it first, or leave --redis-url out: `ferry up` has a Redis of its own"
        raise click.ClickException(f"{why}. {hint}")


def check_free(addresses: Iterable[str], other_ports: str = OTHER_PORTS) -> None:
    """Checks that each address is free now; names the usual mistake, a second server.

    `other_ports` is a command that chooses other ports.
    """
    for address in dict.fromkeys(addresses):
        try:
            parts = urlsplit(address)
            # A unix socket, or an address without a port: the listener knows its own defaults.
            if parts.scheme in ("http", "https") and parts.hostname and parts.port:
                kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
                infos = socket.getaddrinfo(parts.hostname, parts.port, type=kind, flags=flags)
                family, *_, socket_address = infos[0]
                # As of servers: a socket in TIME_WAIT does not count as in use.
                socket.create_server(socket_address, family=family).close()
        except ValueError as error:  # UnicodeError too: a name longer than names may be
            complaint = f"not an address like http://host:port: {address} ({error})"
            raise UnusableSettings(complaint) from error
        except OSError as error:
            complaint = f"cannot listen on {address}: {error.strerror}"
            if error.errno == errno.EADDRINUSE:
                complaint = (
                    f"{address} is in use: is another server running? Stop it, or choose other "
                    f"ports, for example with `{other_ports}`"
                )
            raise click.ClickException(complaint) from error


def allow_many_files() -> None:
    """Lets this process and its children open many files; warns if too few are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft != resource.RLIM_INFINITY and soft < _ENOUGH_FILES:
        warn(
            f"only {soft} files may be open at once, connections included, and a server needs "
            f"{_ENOUGH_FILES} or more: raise the hard limit (`ulimit -Hn`, LimitNOFILE= of "
            "systemd, --ulimit nofile= of docker)"
        )
