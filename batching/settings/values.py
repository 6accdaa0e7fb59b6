"""Reads settings whose values have a form of their own; raises ValueError for other forms."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Self

import msgspec

from batching.models.registration import SERVER_TYPES

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_SOCKETS = "unix"

# What a client sends may get into a URL only like this: no user, path, comma, control character.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PREFIX = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)+")
_MOST_PREFIX_CHARS = 256


def model_settings(text: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Parses `models`: {model: {version: {batchSize: 8}}}, with the words of model-config.yaml."""
    if not text.strip():
        return {}
    try:
        models = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, Any]]])
    except msgspec.ValidationError as error:
        form = '{"model": {"version": {"batchSize": 8}}}'
        raise ValueError(f"write {form} ({error})") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"this is not JSON ({error})") from error
    for settings in (settings for versions in models.values() for settings in versions.values()):
        for word, value in settings.items():
            if SERVER_TYPES.get(word) is int:
                # TorchServe accepts numbers in quotes, too (Gson's `getAsInt`).
                if not _INTEGER.fullmatch(str(value)):
                    raise ValueError(f"{word} is a whole number, not {json.dumps(value)}")
                settings[word] = int(str(value))
    return models


def path_aliases(text: str) -> dict[str, str]:
    """Returns path, without a slash at the end, -> route."""
    aliases = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        path, _, route = pair.partition("=")
        if not (path.startswith("/") and route.startswith("/")):
            raise ValueError(f"write /path=/route, not {pair}")
        aliases[path.rstrip("/")] = route
    return aliases


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Holds the networks of proxies, and whether proxies come by a unix socket."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    has_sockets: bool = False

    @classmethod
    def of(cls, text: str) -> Self:
        """Reads a comma list of addresses, networks and `unix`."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        networks = tuple(ip_network(part) for part in parts if part != _SOCKETS)
        return cls(networks, _SOCKETS in parts)

    def has(self, peer: str) -> bool:
        """Returns whether this address is a proxy's; it is empty for a unix socket."""
        if not (peer and self.networks):
            return self.has_sockets and not peer
        try:
            address = ip_address(peer)
        except ValueError:  # another WSGI server may say anything
            return False
        # A listener for both families sees IPv4 addresses in this form.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.networks)

    def base_url(self, headers: Mapping[str, str], *, scheme: str, peer: str) -> str:
        """Returns the URL, without a slash at the end, under which a client sees this server.

        Ignores what is not well-formed. Reads X-Forwarded-Proto, -Host and -Prefix as nginx, Envoy
        and Traefik send them, not `Forwarded` (RFC 7239), which few proxies send. Names of headers
        are in lower case; `scheme` is the listener's; `peer` as for `has`.
        """

        def forwarded(name: str) -> str:
            # A proxy appends to the header that its client sent, which may be made up.
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


def check_patterns(text: str) -> None:
    for pattern in text.split(","):
        re.compile(pattern.strip())


def check_header(text: str) -> None:
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"{text!r} has characters that no header may have")
