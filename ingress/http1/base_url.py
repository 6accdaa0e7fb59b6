"""Finds out under which URL a client sees this server, behind the proxies that are trusted, too.

Source: X-Forwarded-Proto, X-Forwarded-Host and X-Forwarded-Prefix, as nginx, Envoy and Traefik know
them; they are no standard. `Forwarded` (RFC 7239), which few proxies send, is not read.
"""

import re
from collections.abc import Mapping

from batching.settings.values import TrustedProxies

# Of what a client sends, only this may get into a URL: no user, path, comma or control character.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PREFIX = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+)+")
_MOST_PREFIX_CHARS = 256

_NO_PROXIES = TrustedProxies()


class BaseUrls:
    """Makes base URLs; what is not well-formed in a header is ignored."""

    def __init__(self, proxies: TrustedProxies = _NO_PROXIES) -> None:
        self._proxies = proxies

    def of(self, headers: Mapping[str, str], *, scheme: str, peer: str) -> str:
        """Returns the URL without a slash at the end.

        Args:
            headers: of the request, names in lower case.
            scheme: of the listener.
            peer: the address at the other end of the connection; empty for a unix socket.
        """
        host = _well_formed(_HOST, headers.get("host", "")) or "localhost"
        if not self._proxies.has(peer):
            return f"{scheme}://{host}"
        host = _well_formed(_HOST, _last(headers, "x-forwarded-host")) or host
        forwarded_scheme = _last(headers, "x-forwarded-proto").lower()
        if forwarded_scheme in {"http", "https"}:
            scheme = forwarded_scheme
        prefix = _last(headers, "x-forwarded-prefix").rstrip("/")
        if len(prefix) > _MOST_PREFIX_CHARS:
            prefix = ""
        return f"{scheme}://{host}{_well_formed(_PREFIX, prefix)}"


def _last(headers: Mapping[str, str], name: str) -> str:
    # A proxy that adds to the header writes behind what its own client has made up.
    return headers.get(name, "").rpartition(",")[2].strip()


def _well_formed(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else ""
