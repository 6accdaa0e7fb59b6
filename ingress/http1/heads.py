"""Makes requests of bytes, and bytes of the heads of answers.

llhttp, through httptools, decides what is HTTP. It is strict: a length beside chunks, bare line
feeds and the like end the connection.
"""

import contextlib
import re
import time
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from ingress.http1.exchange import Exchange, Header, HttpAnswer

# A shorter header counts as this many: a head could have ten thousands of small ones otherwise.
LEAST_HEADER_BYTES = 64
# The lines between chunks, and trailers.
MAX_AROUND_BYTES = 1024 * 1024
# The headers that say where a request ends.
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding", b"upgrade"})

# llhttp knows the methods by name. This is a line with another one.
_OTHER_METHOD = re.compile(rb"[A-Z]{1,32} /[!-~]* HTTP/1\.[01]\r\n")

CHUNKED = "transfer-encoding: chunked"
# Such an answer ends with its head: a body would be taken for the next answer.
WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
_REQUEST_ID = "x-request-id"
# Of a prediction, beside its id: three of TorchServe's, and a content type. More are a handler's,
# and may change with each answer.
_USUAL_HEADERS = 4


class Unreadable(Exception):
    """Says that bytes are not HTTP, or too many; 405: with a method that HTTP does not know."""

    def __init__(self, status: int, explanation: str = "") -> None:
        super().__init__(status)
        headers = [("content-type", "text/plain")] if explanation else []
        self.answer = HttpAnswer(status, headers, explanation.encode())


class RequestParser:
    """Parses the requests of one connection, in order. httptools calls its methods `on_...`."""

    def __init__(self, connection: Any, max_head_bytes: int) -> None:
        self.is_in_head = False
        self._connection = connection
        self._max_head_bytes = max_head_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[Header] = []
        self._fields: dict[str, str] = {}
        self._head_bytes = self._around_bytes = self._size_bytes = 0
        self._current: Exchange | None = None

    def feed(self, data: bytes | memoryview) -> None:
        """Gives requests to the connection as soon as their heads are whole.

        Raises:
            Unreadable: the request that these bytes belong to cannot be served.
        """
        if self._current is None:
            self._head_bytes += len(data)
        else:
            self._around_bytes += len(data)
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Unreadable):  # from one of the methods below
                raise error.__context__ from error
            is_method = isinstance(error, httptools.HttpParserInvalidMethodError)
            if is_method and _OTHER_METHOD.match(data):
                raise Unreadable(HTTPStatus.METHOD_NOT_ALLOWED) from error
            raise Unreadable(HTTPStatus.BAD_REQUEST) from error
        # In a head, or behind one whose body has not ended.
        if self._around_bytes > MAX_AROUND_BYTES:
            raise Unreadable(HTTPStatus.BAD_REQUEST)
        if self.is_in_head and self._head_bytes > self._max_head_bytes:
            raise self._too_large()

    def end(self) -> None:
        """Drops httptools' parser, which holds this one."""
        del self._parser

    def pass_over_body(self) -> None:
        """Goes on with the next request: the connection has read the rest of this one's body."""
        self._parser, self._current = httptools.HttpRequestParser(self), None

    def on_url(self, url: bytes) -> None:
        if self._current is not None:
            return  # of a head that was announced
        if not self.is_in_head:
            self.is_in_head = True
            self._url, self._headers, self._fields, self._size_bytes = b"", [], {}, 0
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_in_head:
            return  # a trailer
        self._size_bytes += len(name) + len(value)
        try:
            content = value.decode().strip(" \t")
        except UnicodeDecodeError:
            if name.lower() in _FRAMING:
                raise  # it says where the request ends, and a proxy may read it otherwise
            return
        spelled, lower = _spellings(name)
        self._headers.append((spelled, content))
        self._fields[lower] = content

    def on_headers_complete(self) -> None:
        if self._current is not None:
            return
        # The bytes that have come may be more than the head.
        is_long = self._head_bytes > self._max_head_bytes
        has_many = len(self._headers) * LEAST_HEADER_BYTES > self._max_head_bytes
        if has_many or (is_long and len(self._url) + self._size_bytes > self._max_head_bytes):
            # Here, as another request in the same read would take this one's place.
            raise self._too_large()
        self.is_in_head = False
        self._head_bytes = self._around_bytes = 0
        path, query = _split(self._url)
        parser = self._parser
        self._current = exchange = Exchange(
            self._connection,
            parser.get_method().decode("ascii"),
            path,
            query,
            parser.get_http_version(),
            self._headers,
            self._fields,
            parser.should_keep_alive(),
        )
        # In HTTP/1.0, where a proxy may not know this header and see another end of the request,
        # llhttp goes by it nevertheless (RFC 9112, 6.1).
        if exchange.http_version < "1.1" and "transfer-encoding" in exchange.fields:
            raise Unreadable(HTTPStatus.BAD_REQUEST)
        self._connection.take_request(exchange)

    def on_body(self, chunk: bytes) -> None:
        if self._current is not None:
            self._around_bytes -= len(chunk)
            self._current.feed(chunk)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # httptools says so before the body
        current, self._current = self._current, None
        if current is not None:
            current.receive()

    def _parse(self, data: memoryview) -> None:
        """Feeds httptools; a wish for another protocol is passed over (RFC 9110, 7.8).

        Java's HttpClient has one with each request over http://, and httptools would leave body and
        rest to it. So another parser, which is told how the body comes, goes on behind the head.
        """
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as wish:
                assert self._current is not None
                data = data[wish.args[0] :]
                lines = [
                    f"{name}: {value}\r\n"
                    for name, value in self._current.headers
                    if name.lower() in ("content-length", "transfer-encoding")
                ]
                head = "".join(lines)
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(f"POST / HTTP/1.1\r\n{head}\r\n".encode())
            else:
                return

    def _too_large(self) -> Unreadable:
        return Unreadable(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"The request line and headers have more than {self._max_head_bytes} bytes, or too "
            "many headers; raise max_header_size.\n",
        )


# Few names and targets come again and again; of a hostile client's, only this many are kept.
@lru_cache(maxsize=256)
def _spellings(name: bytes) -> tuple[str, str]:
    spelled = name.decode("latin-1")
    return spelled, spelled.lower()


@lru_cache(maxsize=256)
def _split(target: bytes) -> tuple[str, str]:
    """Returns the target's path, percent-decoded, and its query."""
    if not target.startswith(b"/"):
        # A proxy is asked for whole URLs. Anything else, like `*`, leads nowhere.
        with contextlib.suppress(httptools.HttpParserError):
            url = httptools.parse_url(target)
            target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
    path, _, query = target.partition(b"?")
    plain_path = unquote_to_bytes(path) if b"%" in path else path
    return plain_path.decode("utf-8", "replace"), query.decode("utf-8", "replace")


def head_bytes(
    status: int,
    headers: Sequence[Header],
    added: tuple[Header, ...] = (),
    *,
    keeps_alive: bool,
    framing: str,
) -> bytes:
    """Returns status line and headers, with the server's own.

    `headers` are the application's. Those that are `added` replace others of their names: a browser
    refuses two allowed origins. `framing` says where the body ends; it is empty where none follows.

    Raises:
        ValueError: a header holds a line break.
    """
    own = ""
    if headers and headers[0][0] == _REQUEST_ID:
        own, headers = _line(*headers[0]), headers[1:]
    render = _lines if len(headers) <= _USUAL_HEADERS else _lines.__wrapped__
    lines = render(status, tuple(headers), added, keeps_alive)
    date = _date_line(int(time.time()))  # noqa: TID251 - it is written for people and caches
    end = f"{framing}\r\n" if framing else ""
    return f"{lines}{own}{date}{end}\r\n".encode("latin-1", "replace")


@lru_cache(maxsize=64)
def _lines(
    status: int, headers: tuple[Header, ...], added: tuple[Header, ...], keeps_alive: bool
) -> str:
    names = {name for name, _ in added}
    status_line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} "
    lines = [f"{status_line}\r\n"]
    lines += [_line(*header) for header in headers if header[0].lower() not in names]
    lines += [_line(*header) for header in added]
    lines.append(_line("connection", "keep-alive" if keeps_alive else "close"))
    # Without the version, which helps attackers most.
    lines.append(_line("server", "torchferry"))
    return "".join(lines)


def _line(name: str, value: str) -> str:
    line = f"{name}: {value}\r\n"
    if line.count("\n") != 1 or line.count("\r") != 1:
        raise ValueError("a response header holds a line break")
    return line


@lru_cache(maxsize=1)
def _date_line(now_s: int) -> str:
    return _line("date", formatdate(now_s, usegmt=True))
