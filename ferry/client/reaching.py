"""Reaches a server over HTTP: what every client here sets, and why one could not be reached."""

import ipaddress
import os
import ssl
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from ferry.client import TOKEN_VARIABLE
from ferry.client.answer_errors import ServerUnreachable
from ferry.client.submission import Call

CONNECT_TIMEOUT_S = 5.0

H = TypeVar("H")


class Reach:
    """One server's address, and the token for it."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self.token = os.environ.get(TOKEN_VARIABLE, "").strip() if token is None else token
        # One that never answered is not worth waiting for: its address may be wrong.
        self._has_answered = False
        self._context: ssl.SSLContext | None = None

    def open(self, kind: Callable[..., H]) -> H:
        """Returns a client of httpx of this kind.

        Raises:
            ServerUnreachable: the environment names a proxy or certificates that cannot be used.
        """
        try:
            return kind(
                headers={"authorization": f"Bearer {self.token}"} if self.token else {},
                verify=self._certificates(),
                trust_env=not is_this_machine(self.url),
            )
        except (ImportError, ValueError, OSError) as error:
            raise ServerUnreachable(
                why_not_opened(error), was_sent=False, may_pass=False
            ) from error

    def _certificates(self) -> ssl.SSLContext:
        if self._context is None:
            # Heeds SSL_CERT_FILE, which `trust_env=False` would switch off.
            self._context = httpx.create_ssl_context()
        return self._context

    def request(self, call: Call) -> dict[str, Any]:
        """Returns the arguments of httpx's `request` that send this call."""
        return {
            "method": call.method,
            "url": self.url + call.path,
            "headers": call.headers,
            "content": call.content,
            "timeout": httpx.Timeout(call.answer_timeout_s, connect=CONNECT_TIMEOUT_S),
        }

    def answered(self) -> None:
        """Notes that there is a server at this address."""
        self._has_answered = True

    def failure(self, error: httpx.TransportError | httpx.InvalidURL) -> ServerUnreachable:
        """Returns the error that a caller sees for one of httpx."""
        is_unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        is_wrong = isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL)
        return ServerUnreachable(
            why_not_sent(self.url, error),
            was_sent=not (is_unsent or is_wrong),
            may_pass=self._has_answered and not is_wrong and _tls_error(error) is None,
        )


def is_this_machine(url: str) -> bool:
    """Returns whether the URL leads to a server here, which no proxy can reach."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def why_not_opened(error: Exception) -> str:
    """Returns in one sentence why no connection can be tried at all."""
    return f"a proxy or certificates that the environment names cannot be used: {error}"


def why_not_sent(base_url: str, error: httpx.TransportError | httpx.InvalidURL) -> str:
    """Returns in one sentence why there was no answer."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return _why_not_connected(base_url, error)
        case httpx.TimeoutException():
            return f"no answer from {base_url} in time"
        case httpx.UnsupportedProtocol() | httpx.InvalidURL():
            return f"not a URL like http://host:port: {base_url}"
    return f"the connection to {base_url} broke: {error}"


def _why_not_connected(base_url: str, failure: httpx.TransportError) -> str:
    error = _tls_error(failure)
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {base_url} is not trusted: {error.verify_message}. "
            "SSL_CERT_FILE names a file with certificates that are"
        )
    if error is not None:
        return f"no TLS at {base_url} ({error.reason}): is it http://?"
    return f"nothing answers at {base_url} ({failure}): is the server running?"


def _tls_error(failure: BaseException) -> ssl.SSLError | None:
    error: BaseException | None = failure
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error
