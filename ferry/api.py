"""Talks to a running server over its own HTTP API, as any other client does."""

import contextlib
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import quote

import click
import httpx

from ferry_client.calls import ANSWER_TIMEOUT_S, Call
from ferry_client.connection import TOKEN_VARIABLE, Endpoint, Sender, token_of
from ferry_client.errors import AnswerError, FerryError, Unauthorized, error_of, text_of

_ASK_TIMEOUT_S = 2.0
_UNKNOWN_PATH = frozenset({404, 405, 501})
# The types of errors that the server's other listeners answer for a path that is not theirs.
_ELSEWHERE = frozenset({"ResourceNotFoundException", "MethodNotAllowedException"})
_PORTS = ": is that the right port? Unless they were set, 8080 is inference, 8081 management"
_LONGEST_QUOTE = 100


class ApiError(click.ClickException):
    """Ends the command with a client's error; `status` is 0 where no server answered."""

    def __init__(self, error: FerryError) -> None:
        self.status = error.status if isinstance(error, AnswerError) else 0
        super().__init__(complaint(error) + (f" (HTTP {self.status})" if self.status else ""))


class Api:
    """Talks to one listener of a server.

    Raises:
        ApiError: the environment names a proxy, certificates or a token that cannot be used.
    """

    def __init__(self, base_url: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._base_url = base_url.rstrip("/")
        self._answer_timeout_s = answer_timeout_s
        with click_errors():
            self._sender = Sender(Endpoint(base_url, None), patience_s=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()

    def answer(self, method: str, *path: str, **query: Any) -> httpx.Response:
        """Sends a request and returns the answer, whatever its status.

        Args:
            method: HTTP method.
            path: the path's segments, unquoted.
            query: parameters; None and "" are left out.

        Raises:
            ClickException: no server answers at this address, or none of ours or TorchServe's.
        """
        given = {name: value for name, value in query.items() if value not in (None, "")}
        target = "".join(f"/{quote(segment, safe=':')}" for segment in path)
        target += f"?{httpx.QueryParams(given)}" if given else ""
        with click_errors():
            response = self._sender.send(
                Call(method, target, answer_timeout_s=self._answer_timeout_s)
            )
        if "x-request-id" not in response.headers:
            raise self._foreign(response)
        return response

    def call(self, method: str, *path: str, **query: Any) -> Any:
        """Returns the JSON of a successful answer, or raises what `answer` does, or ApiError."""
        response = self.answer(method, *path, **query)
        if response.is_error:
            raise ApiError(error_of(response))
        try:
            return response.json()
        except ValueError as error:
            raise self._foreign(response) from error

    def _foreign(self, response: httpx.Response) -> click.ClickException:
        """Returns an error that says in one line that this answer is another program's."""
        line = " ".join(text_of(response).split())
        quoted = line[:_LONGEST_QUOTE] + ("..." if len(line) > _LONGEST_QUOTE else "")
        return click.ClickException(
            f"{self._base_url} does not answer as a ferry server does: {quoted} "
            f"(HTTP {response.status_code})"
        )


@contextlib.contextmanager
def click_errors(asked_url: str = "") -> Iterator[None]:
    """Turns a client's errors into errors that end the command.

    `asked_url`: is asked once more where a path is unknown to it, and no server of ours says so.
    """
    try:
        yield
    except FerryError as error:
        if asked_url and isinstance(error, AnswerError) and not error.type:
            require_ours(asked_url, error.status)
        raise ApiError(error) from error


def require_ours(url: str, status: int | None) -> None:
    """Raises ClickException if this status is of a program that is no server of ours.

    A handler may answer with any status.
    """
    if status in _UNKNOWN_PATH:
        with Api(url, answer_timeout_s=_ASK_TIMEOUT_S) as api:
            api.answer("GET", "readyz")


def complaint(error: FerryError) -> str:
    """Returns the server's words, with a hint where a token was refused or a port is wrong."""
    if not isinstance(error, AnswerError):
        return str(error)
    if isinstance(error, Unauthorized):
        state = "has another key, or an expired one" if token_of(TOKEN_VARIABLE) else "is not set"
        return f"{error.message}: {TOKEN_VARIABLE} {state}"
    return error.message + (_PORTS if error.type in _ELSEWHERE else "")
