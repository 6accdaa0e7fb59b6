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

from ingress.http1.exchange import Answer, Connection, Exchange, Header

# As which a shorter header counts, or a head of little ones would be ten thousands.
LEAST_HEADER_BYTES = 64
_MAX_KEPT_CHARS = 256
# The headers that say where a request ends.
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding", b"upgrade"})
# Those of them that say how its body comes.
_BODY_FRAMING = frozenset({"content-length", "transfer-encoding"})

# Spelled so, and in lower case. Looked up rather than decoded: most requests have no others.
_USUAL_NAMES = {
    spelling.encode(): (spelling, name)
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
    """Tells that the bytes are not HTTP, or too many; `answer` is what the client gets."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(status)
        headers = [("content-type", "text/plain")] if text else []
        self.answer = Answer(status, headers, text.encode())


class UnknownMethod(Unreadable):
    """The request is HTTP, with a method that HTTP does not know."""

    def __init__(self) -> None:
        super().__init__(HTTPStatus.METHOD_NOT_ALLOWED)


class _Refused(Exception):
    """Ends the parsing from within one of its callbacks."""


class RequestParser:
    """Parses the requests of one connection, in order."""

    def __init__(
        self,
        connection: Connection,
        on_request: Callable[[Exchange], None],
        max_head_bytes: int,
    ) -> None:
        self.is_in_head = False
        self._connection = connection
        self._on_request = on_request
        self._max_head_bytes = max_head_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._lines: list[tuple[bytes, bytes]] = []  # of the head
        self._head_bytes = 0
        self._around_bytes = 0
        self._current: Exchange | None = None
        self._is_head_too_large = False

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
            if self._is_head_too_large:
                raise self._too_large() from error
            raise Unreadable(HTTPStatus.BAD_REQUEST) from error
        # In a head, or behind one whose body has not ended.
        if self._around_bytes > MAX_AROUND_BYTES:
            raise Unreadable(HTTPStatus.BAD_REQUEST)
        if self.is_in_head and self._head_bytes > self._max_head_bytes:
            raise self._too_large()

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
        is_long = self._head_bytes > self._max_head_bytes
        has_many = len(self._lines) * LEAST_HEADER_BYTES > self._max_head_bytes
        if has_many or (is_long and self._is_too_large()):
            # Here, as another request in the same read would take this one's place.
            self._is_head_too_large = True
            raise _Refused
        self.is_in_head = False
        self._head_bytes = self._around_bytes = 0
        is_short = len(self._url) <= _MAX_KEPT_CHARS
        path, query = _known_split(self._url) if is_short else _split(self._url)
        headers, fields = _decoded(self._lines)
        parser = self._parser
        self._current = exchange = Exchange(
            self._connection,
            method=parser.get_method().decode("ascii"),
            path=path,
            query=query,
            http_version=parser.get_http_version(),
            headers=headers,
            fields=fields,
            keeps_alive=parser.should_keep_alive(),
        )
        # In HTTP/1.0, where a proxy may not know this header and see another end of the request,
        # llhttp goes by it nevertheless (RFC 9112, 6.1).
        if exchange.http_version < "1.1" and "transfer-encoding" in fields:
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
                framing = (
                    line for line in self._current.headers if line[0].lower() in _BODY_FRAMING
                )
                head = "".join(f"{name}: {value}\r\n" for name, value in framing)
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(f"POST / HTTP/1.1\r\n{head}\r\n".encode())
            else:
                return

    def _is_too_large(self) -> bool:
        sizes_bytes = (len(name) + len(value) for name, value in self._lines)
        return len(self._url) + sum(sizes_bytes) > self._max_head_bytes

    def _too_large(self) -> Unreadable:
        text = f"The request line and headers have more than {self._max_head_bytes} bytes, or too "
        text += "many headers; raise max_header_size.\n"
        return Unreadable(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)


def _decoded(lines: Sequence[tuple[bytes, bytes]]) -> tuple[list[Header], dict[str, str]]:
    """Returns `headers` and `fields` of an exchange.

    Raises:
        UnicodeDecodeError: one that is not UTF-8 says where the request ends; a proxy may read it
            otherwise.
    """
    headers, fields = [], {}
    try:
        for name, line in lines:
            value = line.decode().strip(" \t")
            spelled, lower = _USUAL_NAMES.get(name) or _spellings(name)
            headers.append((spelled, value))
            fields[lower] = value
    except UnicodeDecodeError:
        return _decoded([line for line in lines if _is_utf8(*line)])
    return headers, fields


def _spellings(name: bytes) -> tuple[str, str]:
    text = name.decode("latin-1")
    return text, text.lower()


def _is_utf8(name: bytes, value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        if name.lower() in _FRAMING:
            raise
        return False
    return True


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
