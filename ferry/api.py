"""Talks to a running server over its own HTTP API, as any other client does."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import quote, urlsplit

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
# A path that only this listener of a server has, and its port unless it was set.
_MARKS = {
    "inference": ("/predictions/{model_name}", 8080),
    "management": ("/models", 8081),
    "metrics": ("/metrics", 8082),
}
_OF_MANAGEMENT = frozenset({"models", "nodes"})
# The types of errors that may mean: the server's other listener has the path, or takes the key.
ELSEWHERE = frozenset({"ResourceNotFoundException", "MethodNotAllowedException", INVALID_KEY})
_UNKNOWN_PATH = frozenset({404, 405, 501})
_LONGEST_QUOTE = 100

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
        if response.is_error and (complaint := _wrong_address(self._base_url, response)):
            raise click.ClickException(complaint)
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
            raise click.ClickException(_no_server_of_ours(self._base_url, response)) from error

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
    hint = token_hint() if record.get("type") == INVALID_KEY else ""
    return f"{record['message']}{hint}"


def token_hint() -> str:
    state = "has another key, or an expired one" if token_header() else "is not set"
    return f": {TOKEN_VARIABLE} {state}"


def _wrong_address(base_url: str, response: httpx.Response) -> str:
    """Returns in one line what listens there instead; empty if it is what was asked for.

    Asks the server for its description only if the error may be another listener's, or another
    program's.

    Args:
        base_url: what the user named, without a slash at its end.
        response: the error.
    """
    error_type = _error_type(response)
    # A handler may have made any other answer.
    is_strangers = is_page(response) or response.status_code in _UNKNOWN_PATH
    if error_type not in ELSEWHERE and not (error_type == "" and is_strangers):
        return ""
    names = _listeners(base_url)
    if not names:
        return _no_server_of_ours(base_url, response) if error_type == "" else ""
    path = [segment for segment in response.url.path.split("/") if segment]
    # Both listeners have a job; to list and to retry is the management's.
    is_of_management = path[0] in _OF_MANAGEMENT or path == ["jobs"] or path[-1] == "retry"
    wanted = "management" if is_of_management else "inference"
    if wanted in names:
        return ""
    here = f"{base_url} is the {' and '.join(names)} port"
    usual = _MARKS[wanted][1]
    if port := urlsplit(base_url).port:
        head = base_url[: base_url.rindex(f":{port}") + 1]
        # As far away as usual, or at its usual port.
        for other in dict.fromkeys((port + usual - _MARKS[names[0]][1], usual)):
            if wanted in _listeners(f"{head}{other}"):
                return f"{here}; {wanted} is {head}{other}"
    return f"{here}; {wanted} is another one, {usual} unless it was set"


def _no_server_of_ours(base_url: str, response: httpx.Response) -> str:
    """Returns in one line that this answer is another program's."""
    line = " ".join(text_of(response).split())
    quoted = line[:_LONGEST_QUOTE] + ("..." if len(line) > _LONGEST_QUOTE else "")
    status = response.status_code
    return f"{base_url} does not answer as a ferry server does: {quoted} (HTTP {status})"


def _error_type(response: httpx.Response) -> str:
    try:
        record = response.json()
    except ValueError:
        return ""
    return str(record.get("type", "")) if isinstance(record, dict) else ""


def _listeners(base_url: str) -> list[str]:
    """Returns which listeners of a server are there, by its description; none if it is not ours."""
    try:
        with contextlib.closing(Sender(Endpoint(base_url, None), patience_s=0)) as sender:
            answer = sender.send(Call("GET", "/api-description", answer_timeout_s=_ASK_TIMEOUT_S))
        document: Any = answer.json()
    except (FerryError, ValueError):
        return []
    paths = document.get("paths") if isinstance(document, dict) else None
    known = paths if isinstance(paths, dict) else {}
    return [name for name, (mark, _) in _MARKS.items() if mark in known]
