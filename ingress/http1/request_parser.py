"""Makes requests of bytes; llhttp, through httptools, decides what is HTTP.

It is strict: a length beside chunks, bare line feeds and the like end the connection.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

import httptools

from ingress.http1.exchange import Connection, Exchange, Header

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
_MAX_KEPT_CHARS = 256
# The headers that say where a request ends.
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding", b"upgrade"})
# Those of them that say how its body comes.
_BODY_FRAMING = frozenset({"content-length", "transfer-encoding"})

# Looked up rather than decoded: most requests have no others.
_USUAL_NAMES = {
    spelling.encode(): name
    for name in (
        "accept",
        "accept-encoding",
        "accept-language",
        "authorization",
        "cache-control",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "origin",
        "referer",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-real-ip",
        "x-request-id",
    )
    for spelling in (name, name.title())
}

# The lines between chunks, and trailers.
MAX_AROUND_BYTES = 1024 * 1024


# llhttp knows the methods by name. This is a line with another one.
_OTHER_METHOD = re.compile(rb"[A-Z]{1,32} /[!-~]* HTTP/1\.[01]\r\n")


class Unreadable(Exception):
    """The bytes are not HTTP, or too many. `status` is the answer's."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class UnknownMethod(Unreadable):
    """The request is HTTP, with a method that HTTP does not know."""

    def __init__(self) -> None:
        super().__init__(HTTPStatus.METHOD_NOT_ALLOWED)


class _Refused(Exception):
    """Ends the parsing from within one of its callbacks."""


class RequestParser:
    """Parses the requests of one connection, in order."""

    def __init__(self, connection: Connection, on_request: Callable[[Exchange], None]) -> None:
        self.is_in_head = False
        self._connection = connection
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._lines: list[tuple[bytes, bytes]] = []  # of the head
        self._head_bytes = 0
        self._around_bytes = 0
        self._current: Exchange | None = None
        self._refusal = HTTPStatus.BAD_REQUEST

    def feed(self, data: bytes | memoryview) -> None:
        """Announces requests as soon as their heads are whole.

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
            is_method = isinstance(error, httptools.HttpParserInvalidMethodError)
            if is_method and _OTHER_METHOD.match(data):
                raise UnknownMethod from error
            raise Unreadable(self._refusal) from error
        # In a head, or behind one whose body has not ended.
        if self._around_bytes > MAX_AROUND_BYTES:
            raise Unreadable(HTTPStatus.BAD_REQUEST)
        if self.is_in_head and self._head_bytes > MAX_HEAD_BYTES:
            raise Unreadable(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def end(self) -> None:
        """Lets go of httptools' parser, which holds this one, and so the connection."""
        del self._parser

    def pass_over_body(self) -> None:
        """Goes on with the next request: the rest of this one's body was read by the connection."""
        self._parser, self._current = httptools.HttpRequestParser(self), None

    def on_url(self, url: bytes) -> None:
        """Begins a request, or adds to its target. Called by httptools, as the next ones."""
        if self._current is not None:
            return  # of a head that was announced
        if not self.is_in_head:
            self.is_in_head = True
            self._url, self._lines = b"", []
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; passes over a trailer."""
        if self.is_in_head:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """Announces the request."""
        if self._current is not None:
            return
        # The bytes that have come may be more than the head.
        is_long = self._head_bytes > MAX_HEAD_BYTES
        if len(self._lines) > MAX_HEADERS or (is_long and self._is_too_large()):
            # Here, as another request in the same read would take this one's place.
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise _Refused
        self.is_in_head = False
        self._head_bytes = self._around_bytes = 0
        is_short = len(self._url) <= _MAX_KEPT_CHARS
        path, query = _known_split(self._url) if is_short else _split(self._url)
        parser = self._parser
        self._current = exchange = Exchange(
            self._connection,
            method=parser.get_method().decode("ascii"),
            path=path,
            query=query,
            http_version=parser.get_http_version(),
            headers=_decoded(self._lines),
            keeps_alive=parser.should_keep_alive(),
        )
        if exchange.http_version < "1.1" and _has_transfer_encoding(exchange):
            raise _Refused
        self._on_request(exchange)

    def on_body(self, chunk: bytes) -> None:
        """Adds a part of the body."""
        if self._current is not None:
            self._around_bytes -= len(chunk)
            self._current.feed(chunk)

    def on_message_complete(self) -> None:
        """Ends the request."""
        if self._parser.should_upgrade():
            return  # httptools says so before the body
        current, self._current = self._current, None
        if current is not None:
            current.receive()

    def _parse(self, data: memoryview) -> None:
        """Feeds httptools; a wish for another protocol is passed over (RFC 9110, 7.8).

        httptools would leave the body, and all behind it, to the other protocol, but Java's
        HttpClient asks for HTTP/2 with each request over http://. So another parser, which is told
        how the body comes, goes on behind the head.
        """
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as wish:
                assert self._current is not None
                data = data[wish.args[0] :]
                framing = (line for line in self._current.headers if line[0] in _BODY_FRAMING)
                head = "".join(f"{name}: {value}\r\n" for name, value in framing)
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(f"POST / HTTP/1.1\r\n{head}\r\n".encode())
            else:
                return

    def _is_too_large(self) -> bool:
        sizes_bytes = (len(name) + len(value) for name, value in self._lines)
        return len(self._url) + sum(sizes_bytes) > MAX_HEAD_BYTES


def _decoded(lines: Sequence[tuple[bytes, bytes]]) -> list[Header]:
    """Returns the headers with names in lower case, without those whose values are not UTF-8.

    Raises:
        UnicodeDecodeError: such a one says where the request ends; a proxy may read it otherwise.
    """
    try:
        return [
            (_USUAL_NAMES.get(name) or _lower(name), value.decode().strip(" \t"))
            for name, value in lines
        ]
    except UnicodeDecodeError:
        return _decoded([line for line in lines if _is_utf8(*line)])


def _lower(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _is_utf8(name: bytes, value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        if name.lower() in _FRAMING:
            raise
        return False
    return True


def _has_transfer_encoding(exchange: Exchange) -> bool:
    # In HTTP/1.0, where a proxy may not know this header and see another end of the request, llhttp
    # goes by it nevertheless (RFC 9112, 6.1).
    return any(name == "transfer-encoding" for name, _ in exchange.headers)


def _split(target: bytes) -> tuple[str, str]:
    """Returns the target's path, percent-decoded, and its query."""
    if not target.startswith(b"/"):
        # A proxy is asked for whole URLs. Anything else, like `*`, leads nowhere.
        with contextlib.suppress(httptools.HttpParserError):
            url = httptools.parse_url(target)
            target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
    path, _, query = target.partition(b"?")
    text = (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace")
    return text, query.decode("utf-8", "replace")


# Few targets are asked for again and again.
_known_split = lru_cache(maxsize=1024)(_split)
