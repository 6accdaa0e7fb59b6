"""Talks to a running server over its own HTTP API, as any other client does."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import quote

import click
import httpx

from ferry.wrong_address import no_server_of_ours, wrong_address
from ferry_client.calls import ANSWER_TIMEOUT_S, Call
from ferry_client.connection import TOKEN_VARIABLE, Endpoint, Sender, token_of
from ferry_client.errors import FerryError, text_of

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
        self._answer_timeout_s = answer_timeout_s
        with _told():
            self._sender = Sender(Endpoint(base_url, None), patience_s=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()

    def send(
        self,
        method: str,
        *path: str,
        params: dict[str, Any] | None = None,
        content: bytes = b"",
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
        query = {name: value for name, value in (params or {}).items() if value not in (None, "")}
        with _told():
            return self._sender.send(
                Call(
                    method,
                    "".join(f"/{quote(segment, safe=':')}" for segment in path)
                    + (f"?{httpx.QueryParams(query)}" if query else ""),
                    {"content-type": content_type} if content_type else {},
                    content,
                    self._answer_timeout_s,
                )
            )

    def answer(self, method: str, *path: str, **request: Any) -> httpx.Response:
        """Returns the answer, as `send`, of a listener that has what was asked for.

        Raises:
            ClickException: no server answers at this address, another listener, or none of ours.
        """
        response = self.send(method, *path, **request)
        if response.is_error and (text := wrong_address(self._base_url, response)):
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
    with _told():
        token = token_of(variable)
    return {"authorization": f"Bearer {token}"} if token else {}


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Has the command end with what the client says."""
    try:
        yield
    except FerryError as error:
        raise click.ClickException(str(error)) from error


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
