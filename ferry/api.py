"""Talks to a running server over its own HTTP API, as any other client does."""

import json
import os
from typing import Any, Self
from urllib.parse import quote

import click
import httpx

from ferry.wrong_address import no_server_of_ours, wrong_address
from ferry_client.connection import (
    CONNECT_TIMEOUT_S,
    TOKEN_VARIABLE,
    is_this_machine,
    why_not_opened,
    why_not_sent,
)
from ferry_client.errors import text_of

# Longer than a synchronous registration may take: startup_timeout is 120 s unless set.
ANSWER_TIMEOUT_S = 900.0
# For a command that talks to both APIs, which have keys of their own.
INFERENCE_TOKEN_VARIABLE = "FERRY_INFERENCE_TOKEN"  # noqa: S105 - its name

# The type of a server's refusal where it asks for tokens.
INVALID_KEY = "InvalidKeyException"

# Where others can ask, the server's answer does not tell what a handler raised.
NOT_STARTED = "Failed to start workers"
WHERE_TO_LOOK = "Why is in the ingress's log, in its line `not started model=`."


class ApiError(click.ClickException):
    """Says in the server's own words why it refused."""

    def __init__(self, status: int, message: str) -> None:
        sentence, _, cause = message.partition("\n")
        if sentence.startswith(NOT_STARTED):
            cause = cause or WHERE_TO_LOOK
        super().__init__("\n".join(filter(None, (f"{sentence} (HTTP {status})", cause))))
        self.status = status


class Api:
    """One listener of a server. Safe to use from several threads.

    Raises:
        ClickException: the environment names a proxy, certificates or a token that cannot be used.
    """

    def __init__(self, base_url: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._base_url = base_url.rstrip("/")
        headers = token_header()
        try:
            self._client = httpx.Client(
                timeout=httpx.Timeout(answer_timeout_s, connect=CONNECT_TIMEOUT_S),
                # A file per request and up to 64 at once: the pool must not be the bottleneck.
                limits=httpx.Limits(max_connections=64),
                headers=headers,
                # Heeds SSL_CERT_FILE, which `trust_env=False` would switch off.
                verify=httpx.create_ssl_context(),
                trust_env=not is_this_machine(base_url),
            )
        except (ImportError, ValueError, OSError) as error:
            raise click.ClickException(why_not_opened(error)) from error

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
        """Sends a request and returns the answer, whatever its status.

        Args:
            method: HTTP method.
            path: the path's segments, unquoted.
            params: query parameters; None and "" are left out.
            content: the body.
            content_type: of the body; empty sends no such header.

        Raises:
            ClickException: no server answers at this address.
        """
        url = "/".join([self._base_url, *(quote(segment, safe=":") for segment in path)])
        query = {name: value for name, value in (params or {}).items() if value not in (None, "")}
        headers = {"content-type": content_type} if content_type else {}
        try:
            return self._client.request(method, url, params=query, content=content, headers=headers)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise click.ClickException(why_not_sent(self._base_url, error)) from error

    def answer(self, method: str, *path: str, **request: Any) -> httpx.Response:
        """Returns the answer, as `send`, of a listener that has what was asked for.

        Raises:
            ClickException: no server answers at this address, another listener, or none of ours.
        """
        response = self.send(method, *path, **request)
        if response.is_error and (text := wrong_address(self._client, self._base_url, response)):
            raise click.ClickException(text)
        return response

    def call(self, method: str, *path: str, **params: Any) -> Any:
        """Returns the JSON of a successful answer.

        Raises:
            ApiError: the server refused.
            ClickException: no server answers at this address, or none of ours.
        """
        response = self.answer(method, *path, params=params)
        if response.is_error:
            raise ApiError(response.status_code, error_text(response))
        try:
            return response.json()
        except ValueError as error:
            raise click.ClickException(no_server_of_ours(self._base_url, response)) from error

    def page(self, *path: str, **params: Any) -> dict[str, Any]:
        """Returns a page of a list, an object that has a list under the path's last segment.

        Raises:
            ClickException: as `call`, or the answer is none.
        """
        answer = self.call("GET", *path, **params)
        if not isinstance(answer, dict) or not isinstance(answer.get(path[-1]), list):
            raise click.ClickException(f"{self._base_url} does not answer as a ferry server does")
        return answer


def token_header(variable: str = TOKEN_VARIABLE) -> dict[str, str]:
    """Returns the header with the environment's token; empty without one.

    Raises:
        ClickException: the variable has characters that no token has.
    """
    token = os.environ.get(variable, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise click.ClickException(f"{variable} has characters that no token has")
    return {"authorization": f"Bearer {token}"} if token else {}


def error_text(response: httpx.Response) -> str:
    """Returns the server's complaint, and where a token that it did not take came from."""
    try:
        record = response.json()
    except ValueError:
        return text_of(response)
    if not isinstance(record, dict) or "message" not in record:
        return json.dumps(record)
    text = str(record["message"])
    if record.get("type") == INVALID_KEY:
        text += token_hint()
    return text


def token_hint() -> str:
    """Returns what to add to the refusal of a token."""
    found = "has another key, or an expired one" if token_header() else "is not set"
    return f": {TOKEN_VARIABLE} {found}"
