"""Reads the values of settings that have a form of their own, and refuses those of another form."""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Self

import msgspec

from batching.models.config_keys import SERVER_TYPES
from batching.settings.redis_url import RedisUrl, RedisUrlError
from batching.settings.setting import SettingsError
from batching.webhooks import read_secrets

# {model: {version: {batchSize: 8, ...}}}; the words are those of model-config.yaml.
ModelSettings = Mapping[str, Mapping[str, Mapping[str, Any]]]

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_SOCKETS = "unix"

# Of what a client sends, only this may get into a URL: no user, path, comma or control character.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PREFIX = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)+")
_MOST_PREFIX_CHARS = 256


def model_settings(text: str) -> ModelSettings:
    """Parses the text of `models`, settings of single model versions.

    Raises:
        SettingsError: the text has another form.
    """
    if not text.strip():
        return {}
    try:
        models = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, Any]]])
    except msgspec.ValidationError as error:
        form = '{"model": {"version": {"batchSize": 8}}}'
        raise SettingsError(f"models: write {form} ({error})") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise SettingsError(f"models: this is not JSON ({error})") from error
    for versions in models.values():
        for words in versions.values():
            words |= {word: _number(word, words[word]) for word in words if _is_number(word)}
    return models


def _is_number(word: str) -> bool:
    return SERVER_TYPES.get(word) is int


def _number(word: str, value: object) -> int:
    # TorchServe accepts numbers in quotes, too (Gson's `getAsInt`).
    if not _INTEGER.fullmatch(str(value)):
        raise SettingsError(f"models: {word} is a whole number, not {json.dumps(value)}")
    return int(str(value))


def path_aliases(text: str) -> dict[str, str]:
    """Returns the paths of `path_aliases`, without a slash at the end, and their routes."""
    pairs = (pair.strip().partition("=") for pair in text.split(",") if pair.strip())
    return {path.rstrip("/"): route for path, _, route in pairs}


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
        networks = tuple(ip_network(part) for part in parts if part != _SOCKETS)
        return cls(networks, _SOCKETS in parts)

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
        """Returns the URL, without a slash at the end, under which a client sees this server.

        What is not well-formed is ignored. X-Forwarded-Proto, -Host and -Prefix are read as nginx,
        Envoy and Traefik know them; they are no standard. `Forwarded` (RFC 7239), which few proxies
        send, is not.

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


def check_models(_key: str, text: str) -> None:
    model_settings(text)


def check_aliases(key: str, text: str) -> None:
    for path, route in path_aliases(text).items():
        if not (f"{path}/".startswith("/") and route.startswith("/")):
            raise SettingsError(f"{key}: write /path=/route, not {path}={route}")


def check_proxies(key: str, text: str) -> None:
    try:
        TrustedProxies.of(text)
    except ValueError as error:
        advice = "write addresses, networks such as 10.0.0.0/8, or unix"
        raise SettingsError(f"{key}: {error}; {advice}") from error


def check_secrets(key: str, text: str) -> None:
    try:
        read_secrets(text)
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from error


def check_header(key: str, text: str) -> None:
    if not (text.isascii() and text.isprintable()):
        raise SettingsError(f"{key}={text!r} has characters that no header may have")


def check_log_level(key: str, text: str) -> None:
    if text.upper() not in logging.getLevelNamesMapping():
        raise SettingsError(f"{key}={text!r} is none of: debug, info, warning, error")


def check_redis_url(key: str, url: str) -> None:
    try:
        if url:
            RedisUrl.parse(url)
    except RedisUrlError as error:
        raise SettingsError(f"{key}: {error}") from error


def check_pattern(key: str, text: str, advice: str = "") -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise SettingsError(
            f"{key}: {text!r} is not a regular expression ({error}){advice}"
        ) from error


def check_patterns(key: str, text: str) -> None:
    for pattern in text.split(","):
        check_pattern(key, pattern.strip(), "; commas separate expressions")
