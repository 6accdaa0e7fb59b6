"""Says what listens at an address whose answer is not the one that was asked for."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from ferry_client.calls import Call
from ferry_client.connection import Endpoint, Sender
from ferry_client.errors import FerryError, is_page, text_of

_ASK_TIMEOUT_S = 2.0
# A path that only this listener of a server has, by the listener's name.
_MARKS = {
    "inference": "/predictions/{model_name}",
    "management": "/models",
    "metrics": "/metrics",
}
_OF_MANAGEMENT = frozenset({"models", "nodes", "downloads"})
_USUAL_PORTS = {"inference": 8080, "management": 8081, "metrics": 8082}
# The types of errors that may mean: the server's other listener has the path, or takes the key.
ELSEWHERE = frozenset(
    {"ResourceNotFoundException", "MethodNotAllowedException", "InvalidKeyException"}
)
_UNKNOWN_PATH = frozenset({404, 405, 501})
_LONGEST_QUOTE = 100


def wrong_address(base_url: str, response: httpx.Response) -> str:
    """Returns in one line what listens there instead; empty if it is what was asked for.

    Asks the server for its description only if the error may be another listener's, or another
    program's.

    Args:
        base_url: what the user named, without a slash at its end.
        response: the error.
    """
    kind = _kind(response)
    if kind not in ELSEWHERE and not (kind == "" and _is_of_a_stranger(response)):
        return ""
    path = [one for one in response.url.path.split("/") if one]
    there = _paths(base_url)
    names = [name for name, mark in _MARKS.items() if mark in there]
    if not names:
        return no_server_of_ours(base_url, response) if kind == "" else ""
    # Both listeners have a job; to list and to retry is the management's.
    is_of_management = path[0] in _OF_MANAGEMENT or path == ["jobs"] or path[-1] == "retry"
    wanted = "management" if is_of_management else "inference"
    if wanted in names:
        return ""
    here = f"{base_url} is the {' and '.join(names)} port"
    for url in _neighbours(base_url, names[0], wanted):
        if _MARKS[wanted] in _paths(url):
            return f"{here}; {wanted} is {url}"
    return f"{here}; {wanted} is another one, {_USUAL_PORTS[wanted]} unless it was set"


def no_server_of_ours(base_url: str, response: httpx.Response) -> str:
    """Returns in one line that this answer is another program's."""
    return f"{base_url} does not answer as a ferry server does: {_quote(response)}"


def _kind(response: httpx.Response) -> str:
    """Returns the type of TorchServe's errors; empty if it is none."""
    try:
        record = response.json()
    except ValueError:
        return ""
    return str(record.get("type", "")) if isinstance(record, dict) else ""


def _is_of_a_stranger(response: httpx.Response) -> bool:
    # A handler may have made the answer, but no page.
    return is_page(response) or response.status_code in _UNKNOWN_PATH


def _quote(response: httpx.Response) -> str:
    """Returns the beginning of an answer, on one line."""
    short = " ".join(text_of(response).split())
    short = short[:_LONGEST_QUOTE] + ("..." if len(short) > _LONGEST_QUOTE else "")
    return f"{short} (HTTP {response.status_code})"


def _paths(base_url: str) -> Sequence[str]:
    """Returns the paths that a listener describes; none if it is no server of ours."""
    try:
        with contextlib.closing(Sender(Endpoint(base_url, None), patience_s=0)) as sender:
            answer = sender.send(Call("GET", "/api-description", answer_timeout_s=_ASK_TIMEOUT_S))
        document: Any = answer.json()
    except (FerryError, ValueError):
        return ()
    paths = document.get("paths") if isinstance(document, dict) else None
    return list(paths) if isinstance(paths, dict) else ()


def _neighbours(base_url: str, name: str, wanted: str) -> Iterator[str]:
    """Yields where the other listener may be: as far away as usual, and at its usual port."""
    port = urlsplit(base_url).port
    if port is not None:
        head = base_url[: base_url.rindex(f":{port}") + 1]
        beside = port + _USUAL_PORTS[wanted] - _USUAL_PORTS[name]
        yield from dict.fromkeys(f"{head}{one}" for one in (beside, _USUAL_PORTS[wanted]))
