"""Runs stand-in HTTP servers for the length of a with block."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Self

POLL_S = 0.01  # the default makes `shutdown` wait for half a second

# Status, headers, and body, or its pieces; None: the connection ends without an answer.
GivenAnswer = tuple[int, Mapping[str, str], bytes | Iterable[bytes]] | None


@contextlib.contextmanager
def serving(server: HTTPServer) -> Iterator[str]:
    """Has the bound server answer in a thread; yields its address."""
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
    with server:
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


class StandIn:
    """Gives the answers of `answer`, a function of method, path and body.

    Keeps in `asked` what came: method, path, headers with names in lower case, and body. Pieces of
    an answer may raise a ConnectionError, which ends the connection. Each end sets `has_left`.
    """

    def __init__(self, answer: Callable[[str, str, bytes], GivenAnswer]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.has_left = threading.Event()
        self.url = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        self.http = _Server(("127.0.0.1", 0), _Handler)
        self.http.stand_in = self
        with serving(self.http) as self.url:
            yield self


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    stand_in: StandIn


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()
        self.server.stand_in.has_left.set()

    def respond(self) -> None:
        body = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.stand_in.asked.append((self.command, self.path, headers, body))
        given = self.server.stand_in.answer(self.command, self.path, body)
        if given is None:
            raise ConnectionAbortedError
        status, given_headers, content = given
        is_whole = isinstance(content, bytes)
        length = (
            ("content-length", str(len(content))) if is_whole else ("transfer-encoding", "chunked")
        )
        self.send_response(status)
        for name, value in (*given_headers.items(), length):
            self.send_header(name, value)
        self.end_headers()
        if is_whole:
            self.wfile.write(b"" if self.command == "HEAD" else content)
            return
        for piece in (*content, b""):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = respond  # noqa: N815 - the library's names

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_: object) -> None:
        pass
