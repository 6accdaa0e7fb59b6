"""Parses Redis URLs.

    redis://[user:pass@]host[:6379][/db]            one server; rediss:// with TLS
    unix:///path/to/socket                          one server on this machine
    redis+sentinel://[user:pass@]host[:26379],host/service[/db]
    redis+cluster://[user:pass@]host[:6379],host    rediss+sentinel://, rediss+cluster:// with TLS

User and password are for the servers that hold the keys; sentinels get `?sentinel_username=` and
`?sentinel_password=`. Other parameters after the `?` are options of redis-py's connections.
"""

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote

Address = tuple[str, int]

SENTINEL = "sentinel"
CLUSTER = "cluster"

_SCHEMES = (
    *("redis", "rediss", "unix"),
    *("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
)
_URL = re.compile(r"(?P<scheme>[^:/?#]*)://(?P<hosts>[^/?#]*)(?P<path>/[^?#]*)?(\?(?P<query>.*))?$")
_HOST = re.compile(r"(\[(?P<ipv6>[0-9a-fA-F:.%]+)\]|(?P<name>[^\[\]:\s@]+))(:(?P<port>\d+))?$")
_MAX_PORT = 65535


class RedisUrlError(ValueError):
    """Says that the text is no URL of a Redis; the message says why, without a password."""


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Holds the parts of a Redis URL, percent-decoded; `service`: a server's name at sentinels."""

    scheme: str
    addresses: tuple[Address, ...]
    username: str
    password: str = field(repr=False)
    path: str
    service: str
    db: int
    options: dict[str, str] = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parses the URL, or raises RedisUrlError."""
        match = _URL.match(url)
        if match is None:
            raise RedisUrlError("not a URL; write for example redis://host:6379")
        scheme, path = match["scheme"], unquote(match["path"] or "")
        if scheme not in _SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
            raise RedisUrlError(f"{scheme}:// is unknown; there are {known}")
        login, _, hosts = match["hosts"].rpartition("@")
        username, _, password = map(unquote, login.partition(":"))
        options = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
        if scheme == "unix":
            if not path:
                raise RedisUrlError("unix:// needs the path of a socket: unix:///run/redis.sock")
            addresses: tuple[Address, ...]
            addresses, service, database = (), "", ""
        else:
            addresses = _addresses(hosts, scheme.partition("+")[2])
            service, database = _segments(scheme, path)
        database = options.get("db") or database or "0"
        if not database.isdecimal():
            raise RedisUrlError("the database must be a number")
        if scheme.endswith(CLUSTER) and int(database):
            raise RedisUrlError("a cluster has no database but 0")
        return cls(scheme, addresses, username, password, path, service, int(database), options)

    @property
    def kind(self) -> str:
        """Returns SENTINEL, CLUSTER, or '' for one server."""
        return self.scheme.partition("+")[2]

    @property
    def is_tls(self) -> bool:
        return self.scheme.startswith("rediss")

    def without_secrets(self) -> str:
        """Returns the URL without login and options, for people and logs."""
        hosts = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses
        )
        return f"{self.scheme}://{hosts}{self.path}"


def _segments(scheme: str, path: str) -> tuple[str, str]:
    """Returns the service and the database in a path."""
    segments = path.strip("/").split("/")
    service = segments.pop(0) if scheme.endswith(SENTINEL) else ""
    if scheme.endswith(SENTINEL) and not service:
        raise RedisUrlError(f"{scheme}:// needs the service's name: {scheme}://host:26379/mymaster")
    if len(segments) > 1:
        raise RedisUrlError("the path is too long: nothing comes after the database")
    return service, "".join(segments)


def _addresses(text: str, kind: str) -> tuple[Address, ...]:
    hosts = text.split(",")
    if len(hosts) > 1 and not kind:
        raise RedisUrlError("several hosts are for redis+sentinel:// and redis+cluster://")
    if not kind and not text:
        return (("localhost", 6379),)  # as in redis-py
    addresses = []
    for number, host in enumerate(hosts, 1):
        match = _HOST.match(host)
        port = int((match and match["port"]) or (26379 if kind == SENTINEL else 6379))
        if match is None or not 0 < port <= _MAX_PORT:
            # The host is not repeated: it may be half of a password that has a / in it.
            raise RedisUrlError(
                f"address {number} is not host:port (in a password, write / as %2F and @ as %40)"
            )
        addresses.append((match["ipv6"] or match["name"], port))
    return tuple(addresses)
