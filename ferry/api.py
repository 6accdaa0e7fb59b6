"""Talks to a running server over its own HTTP API, as any other client does."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import quote

import click
import httpx

from ferry_client.calls import ANSWER_TIMEOUT_S, Call
from ferry_client.connection import TOKEN_VARIABLE, Endpoint, Sender, token_of
from ferry_client.errors import FerryError, is_page, text_of

# For a command that talks to both APIs, which have keys of their own.
INFERENCE_TOKEN_VARIABLE = "FERRY_INFERENCE_TOKEN"  # noqa: S105 - its name

# The type of a server's refusal where it asks for tokens.
INVALID_KEY = "InvalidKeyException"

_ASK_TIMEOUT_S = 2.0
_UNKNOWN_PATH = frozenset({404, 405, 501})
# The types of errors that the server's other listeners answer for a path that is not theirs.
_ELSEWHERE = frozenset({"ResourceNotFoundException", "MethodNotAllowedException"})
_PORTS = ": is that the right port? Unless they were set, 8080 is inference, 8081 management"
_LONGEST_QUOTE = 100


class ApiError(click.ClickException):
    """Says in the server's own words why it refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (HTTP {status})")
        self.status = status


class Api:
    """Talks to one listener of a server. Safe to use from several threads.

    Raises:
        ClickException: the environment names a proxy, certificates or a token that cannot be used.
    """

    def __init__(self, base_url: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._base_url = base_url.rstrip("/")
        self._answer_timeout_s = answer_timeout_s
        with _as_click_errors():
            self._sender = Sender(Endpoint(base_url, None), patience_s=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()

    def answer(
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
            ClickException: no server answers at this address, or none of ours.
        """
        query = {name: value for name, value in (params or {}).items() if value not in (None, "")}
        target = "".join(f"/{quote(segment, safe=':')}" for segment in path)
        target += f"?{httpx.QueryParams(query)}" if query else ""
        headers = {"content-type": content_type} if content_type else {}
        with _as_click_errors():
            call = Call(method, target, headers, content, self._answer_timeout_s)
            response = self._sender.send(call)
        # A handler may have made any other answer.
        is_strange = is_page(response) or response.status_code in _UNKNOWN_PATH
        if response.is_error and is_strange and not _error_type(response) and not self._is_ours():
            raise click.ClickException(self._no_server_of_ours(response))
        return response

    def call(self, method: str, *path: str, **params: Any) -> Any:
        """Returns the JSON of a successful answer, or raises what `answer` does, or ApiError."""
        response = self.answer(method, *path, params=params)
        if response.is_error:
            raise ApiError(response.status_code, error_text(response))
        try:
            return response.json()
        except ValueError as error:
            raise click.ClickException(self._no_server_of_ours(response)) from error

    def page(self, *path: str, **params: Any) -> dict[str, Any]:
        """Fetches one page of a list: an object with the list under the path's last segment."""
        answer = self.call("GET", *path, **params)
        if not isinstance(answer, dict) or not isinstance(answer.get(path[-1]), list):
            raise click.ClickException(f"{self._base_url} does not answer as a ferry server does")
        return answer

    def _is_ours(self) -> bool:
        """Returns whether the server describes its API as ours do."""
        call = Call("GET", "/api-description", answer_timeout_s=_ASK_TIMEOUT_S)
        try:
            document = self._sender.send(call).json()
        except (FerryError, ValueError):
            return False
        return isinstance(document, dict) and "paths" in document

    def _no_server_of_ours(self, response: httpx.Response) -> str:
        """Returns in one line that this answer is another program's."""
        line = " ".join(text_of(response).split())
        quoted = line[:_LONGEST_QUOTE] + ("..." if len(line) > _LONGEST_QUOTE else "")
        status = response.status_code
        return f"{self._base_url} does not answer as a ferry server does: {quoted} (HTTP {status})"


def token_header(variable: str = TOKEN_VARIABLE) -> dict[str, str]:
    """Returns the header with the environment's token; empty without one."""
    with _as_click_errors():
        token = token_of(variable)
    return {"authorization": f"Bearer {token}"} if token else {}


@contextlib.contextmanager
def _as_click_errors() -> Iterator[None]:
    """Turns the client's errors into errors that end the command."""
    try:
        yield
    except FerryError as error:
        raise click.ClickException(str(error)) from error


def error_text(response: httpx.Response) -> str:
    """Returns the server's error text, with a hint where a token was refused or a port is wrong."""
    try:
        record = response.json()
    except ValueError:
        return text_of(response)
    if not isinstance(record, dict) or "message" not in record:
        return json.dumps(record)
    kind = record.get("type")
    hint = token_hint() if kind == INVALID_KEY else _PORTS if kind in _ELSEWHERE else ""
    return f"{record['message']}{hint}"


def token_hint() -> str:
    state = "has another key, or an expired one" if token_header() else "is not set"
    return f": {TOKEN_VARIABLE} {state}"


def _error_type(response: httpx.Response) -> str:
    try:
        record = response.json()
    except ValueError:
        return ""
    return str(record.get("type", "")) if isinstance(record, dict) else ""
