"""The bytes of an answer's head."""

import time
from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus

from ingress.exchange import Header

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = "transfer-encoding: chunked"

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
# Such an answer ends with its head; what came behind would be taken for the next answer.
WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})

_date: tuple[int, str] = (0, "")


def head_bytes(status: int, headers: Sequence[Header], *, keeps_alive: bool, framing: str) -> bytes:
    """Status line and headers, those of the server's own included.

    Args:
        status: from 200 to 999.
        headers: of the application; not about the connection, nor the length.
        keeps_alive: whether another request may come by this connection.
        framing: the header that tells where the body ends; empty where none may follow.

    Raises:
        ValueError: a header that would begin another line.
    """
    lines = [_STATUS_LINES.get(status) or f"HTTP/1.1 {status} "]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append("connection: keep-alive" if keeps_alive else "connection: close")
    # The version stays unsaid.
    lines.append("server: torchferry")
    lines.append(_date_line())
    if framing and status not in WITHOUT_BODY:
        lines.append(framing)
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a response header holds a line break")
    return (head + "\r\n\r\n").encode("latin-1", "replace")


def _date_line() -> str:
    global _date  # noqa: PLW0603 - one clock for the process, and its text is made once a second
    now_s = int(time.time())  # noqa: TID251 - it is written for people and caches
    if now_s != _date[0]:
        _date = (now_s, f"date: {formatdate(now_s, usegmt=True)}")
    return _date[1]
