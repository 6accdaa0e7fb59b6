"""Says which receivers a job may have, and reads the secrets that sign their messages.

Source: Standard Webhooks 1.0 (github.com/standard-webhooks/standard-webhooks).
"""

import base64
import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from batching.addresses import is_public

MOST_URL_CHARS = 2000
MOST_SECRETS = 2
# The standard's bounds for a secret.
LEAST_BYTES, MOST_BYTES = 24, 64

DEFAULT_PORTS = {"http": 80, "https": 443}
_PLAIN = re.compile(r"[\x21-\x7e]+")
# Names that resolvers answer by themselves, or that only this network knows.
_LOCAL_NAMES = re.compile(r"(.*\.)?(localhost|local|internal|localdomain)")


def read_secrets(text: str) -> list[bytes]:
    """Returns the keys in a comma list of `whsec_...`; a ValueError says what to write."""
    secrets = [part.strip() for part in text.split(",") if part.strip()]
    if len(secrets) > MOST_SECRETS:
        raise ValueError("there may be two at most: a new one, and the one that it replaces")
    keys = []
    for secret in secrets:
        kind, _, encoded = secret.partition("_")
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:
            key = b""
        if kind != "whsec" or not LEAST_BYTES <= len(key) <= MOST_BYTES:
            raise ValueError(
                f"write whsec_ and then base64 of {LEAST_BYTES} to {MOST_BYTES} random bytes"
            )
        keys.append(key)
    return keys


@dataclass(frozen=True, slots=True)
class ReceiverRules:
    """Decides which receivers are allowed; `allowed_hosts` may be in any network."""

    is_http_allowed: bool = False
    allowed_hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, is_http_allowed: bool, allowed_hosts: str) -> "ReceiverRules":
        hosts = (host.strip().lower() for host in allowed_hosts.split(","))
        return cls(is_http_allowed, frozenset(host for host in hosts if host))

    def check_url(self, url: str) -> SplitResult:
        """Returns the parts of a receiver's URL; a ValueError says why it is refused.

        It does not resolve the name: `check_addresses` checks the result.
        """
        # Parsers disagree about blanks, control characters, `\\` and `user@`.
        if len(url) > MOST_URL_CHARS or not _PLAIN.fullmatch(url) or "\\" in url:
            raise ValueError(f"a URL of {MOST_URL_CHARS} printable ASCII characters at most")
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:  # with words of its own
            host, port = "", 0
        if not host or port == 0 or parts.scheme not in DEFAULT_PORTS:
            raise ValueError("an https:// URL of a host, with a port from 1 to 65535 if any")
        if parts.scheme == "http" and not self.is_http_allowed:
            raise ValueError("an https:// URL; this server has webhook_allow_http off")
        if "@" in parts.netloc or parts.fragment or "%" in parts.netloc:
            raise ValueError("a URL without a user, an escape in its host, or a fragment")
        address = _address(host)
        is_inside = _LOCAL_NAMES.fullmatch(host) if address is None else not is_public(address)
        if is_inside and not self.is_allowed(host):
            raise ValueError("the URL of a public host, or of one in webhook_allowed_hosts")
        return parts

    def is_allowed(self, host: str) -> bool:
        """Returns whether this host may be in any network."""
        return host.rstrip(".") in self.allowed_hosts

    def check_addresses(self, host: str, addresses: Sequence[str]) -> None:
        """Raises ValueError if an address of this name is inside of a network."""
        if not self.is_allowed(host) and not all(is_public(address) for address in addresses):
            raise ValueError(f"{host} leads to an address that is not public")


def _address(host: str) -> str | None:
    """Returns the address that this text spells in any form; None for a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:  # 2130706433, 0x7f.1, 017700000001 and 127.1, which the C library takes
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, ValueError):
        return None
