"""The bytes of an answer's head."""

import time
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from ingress.http1.exchange import Header

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = "transfer-encoding: chunked"

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
# Such an answer ends with its head: a body would be taken for the next answer.
WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})

_REQUEST_ID = "x-request-id"
# A prediction has so many beside its id. With more, a handler has set some, which may change with
# each answer.
_USUAL_HEADERS = 3


def head_bytes(
    status: int,
    headers: Sequence[Header],
    added: Sequence[Header] = (),
    *,
    keeps_alive: bool,
    framing: str,
) -> bytes:
    """Returns status line and headers, with the server's own.

    Args:
        status: from 200 to 999.
        headers: the application's, which say nothing of the connection or the length.
        added: headers that go with every answer.
        keeps_alive: whether another request may come by this connection.
        framing: the header that says where the body ends; empty where no body may follow.

    Raises:
        ValueError: a header holds a line break.
    """
    own = ""
    if headers and headers[0][0] == _REQUEST_ID:
        own, headers = _line(*headers[0]), headers[1:]
    render = _known_lines if len(headers) <= _USUAL_HEADERS else _lines
    lines = render(status, tuple(headers), tuple(added), keeps_alive)
    date = _date_line(int(time.time()))  # noqa: TID251 - it is written for people and caches
    end = f"{framing}\r\n" if framing else ""
    return f"{lines}{own}{date}{end}\r\n".encode("latin-1", "replace")


def with_added(headers: Sequence[Header], added: Sequence[Header]) -> list[Header]:
    """Returns both; an added header replaces others of its name.

    A browser refuses an answer that allows an origin twice.
    """
    names = {name for name, _ in added}
    return [*(header for header in headers if header[0].lower() not in names), *added]


def _lines(
    status: int, headers: Sequence[Header], added: Sequence[Header], keeps_alive: bool
) -> str:
    status_line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} "
    lines = [f"{status_line}\r\n"]
    lines += [_line(*header) for header in with_added(headers, added)]
    lines.append(_line("connection", "keep-alive" if keeps_alive else "close"))
    # Without the version, which helps attackers most.
    lines.append(_line("server", "torchferry"))
    return "".join(lines)


_known_lines = lru_cache(maxsize=64)(_lines)


def _line(name: str, value: str) -> str:
    line = f"{name}: {value}\r\n"
    if line.count("\n") != 1 or line.count("\r") != 1:
        raise ValueError("a response header holds a line break")
    return line


@lru_cache(maxsize=1)
def _date_line(now_s: int) -> str:
    return _line("date", formatdate(now_s, usegmt=True))
