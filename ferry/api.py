"""Talks to a running server over its own HTTP API, as any other client does."""

import ipaddress
import json
import os
import ssl
from typing import Any, Self
from urllib.parse import quote, urlsplit

import click
import httpx

CONNECT_TIMEOUT_S = 5.0
# Longer than a synchronous registration may take: startup_timeout is 120 s unless set.
ANSWER_TIMEOUT_S = 900.0
# From the environment and not from an option: everybody on a machine can read its command lines.
TOKEN_VARIABLE = "FERRY_TOKEN"  # noqa: S105 - its name
# For a command that talks to both doors, which have keys of their own.
INFERENCE_TOKEN_VARIABLE = "FERRY_INFERENCE_TOKEN"  # noqa: S105 - its name

# What a server that asks for tokens calls its refusal.
INVALID_KEY = "InvalidKeyException"


# What a handler raised is for operators only, so the server's answer does not tell it.
NOT_STARTED = "Failed to start workers"
WHERE_TO_LOOK = "Why is in the ingress's log, in its line `not started model=`."


class ApiError(click.ClickException):
    """The server's refusal, in its own words."""

    def __init__(self, status: int, message: str) -> None:
        hint = f"\n{WHERE_TO_LOOK}" if message.startswith(NOT_STARTED) else ""
        super().__init__(f"{message} (HTTP {status}){hint}")
        self.status = status


class Api:
    """One listener of a server. Safe to use from several threads.

    Raises:
        ClickException: the environment names a proxy, certificates or a token that cannot be used.
    """

    def __init__(self, base_url: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._base_url = base_url.rstrip("/")
        timeout = httpx.Timeout(answer_timeout_s, connect=CONNECT_TIMEOUT_S)
        # A file per request and up to 64 at once: the pool must not be the bottleneck.
        limits = httpx.Limits(max_connections=64)
        headers = token_header()
        try:
            self._client = httpx.Client(
                timeout=timeout,
                limits=limits,
                headers=headers,
                # SSL_CERT_FILE counts in any case.
                verify=httpx.create_ssl_context(),
                trust_env=not _is_this_machine(base_url),
            )
        except (ImportError, ValueError, OSError) as error:
            raise click.ClickException(
                f"a proxy or certificates that the environment names cannot be used: {error}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(
        self,
        method: str,
        *path: str,
        params: dict[str, Any] | None = None,
        content: bytes | None = None,
        content_type: str = "",
    ) -> httpx.Response:
        """Returns the server's answer, whatever its status.

        Args:
            method: HTTP method.
            path: the path's segments, unquoted.
            params: query parameters; None and "" are left out.
            content: the body.
            content_type: of the body; empty sends no such header.

        Raises:
            ClickException: nothing answers there.
        """
        url = "/".join([self._base_url, *(quote(segment, safe=":") for segment in path)])
        query = {name: value for name, value in (params or {}).items() if value not in (None, "")}
        headers = {"content-type": content_type} if content_type else {}
        try:
            return self._client.request(method, url, params=query, content=content, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise click.ClickException(self._why_not_connected(error)) from error
        except httpx.TimeoutException as error:
            raise click.ClickException(f"no answer from {self._base_url} in time") from error
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise click.ClickException(
                f"not a URL like http://host:port: {self._base_url}"
            ) from error
        except httpx.TransportError as error:
            raise click.ClickException(
                f"the connection to {self._base_url} broke: {error}"
            ) from error

    def _why_not_connected(self, error: httpx.TransportError) -> str:
        found = _tls_error(error)
        if isinstance(found, ssl.SSLCertVerificationError):
            return (
                f"the certificate of {self._base_url} is not trusted: {found.verify_message}. "
                "SSL_CERT_FILE names a file with certificates that are"
            )
        if found is not None:
            return f"no TLS at {self._base_url} ({found.reason}): is it http://?"
        return f"nothing answers at {self._base_url}: is `ferry up` running?"

    def call(self, method: str, *path: str, **params: Any) -> Any:
        """Returns the JSON of a successful answer.

        Raises:
            ApiError: the server refused.
            ClickException: nothing answers there, or what answers is something else.
        """
        response = self.send(method, *path, params=params)
        if response.status_code >= httpx.codes.BAD_REQUEST:
            raise ApiError(response.status_code, error_text(response))
        try:
            return response.json()
        except ValueError as error:
            raise click.ClickException(
                f"{self._base_url} answered something other than JSON: is it a ferry server?"
            ) from error


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Returns what TLS found wrong, if that is why."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _is_this_machine(url: str) -> bool:
    """Returns whether it leads to a server here, of which no proxy knows."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_header(variable: str = TOKEN_VARIABLE) -> dict[str, str]:
    """Returns the header that brings the environment's token; none without one.

    Raises:
        ClickException: it is no token.
    """
    token = os.environ.get(variable, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise click.ClickException(f"{variable} has characters that no token has")
    return {"authorization": f"Bearer {token}"} if token else {}


def error_text(response: httpx.Response) -> str:
    """Returns what the server says went wrong, and where a token that it did not take came from."""
    try:
        record = response.json()
    except (ValueError, UnicodeDecodeError):
        return response.text.strip() or response.reason_phrase
    if not isinstance(record, dict) or "message" not in record:
        return json.dumps(record)
    text = str(record["message"])
    if record.get("type") == INVALID_KEY:
        found = "has another key, or an expired one" if token_header() else "is not set"
        text += f": {TOKEN_VARIABLE} {found}"
    return text
