"""A small server whose answers a test chooses, and holds back."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.http_server import serving

BREAK = b"(the connection breaks)"
JSON = {"content-type": "application/json"}


class Upstream:
    """Answers every request alike, once `go` is set; keeps what it was asked.

    With `pieces`, the answer comes in pieces, and each of them waits for `go`.
    """

    def __init__(self, body=b'{"label": "cat", "score": 0.5}', *, status=200, headers=None):
        self.body, self.status, self.headers = body, status, headers or JSON
        self.pieces = ()
        self.asked = []
        self.url = ""
        self.has_come, self.go, self.has_left = (threading.Event() for _ in range(3))
        self.go.set()

    @contextlib.contextmanager
    def running(self) -> Iterator["Upstream"]:
        server = _Server(("127.0.0.1", 0), _Handler)
        server.upstream = self
        with serving(server) as self.url:
            try:
                yield self
            finally:
                self.go.set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    upstream: Upstream


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        upstream = self.server.upstream
        headers = {name.lower(): value for name, value in self.headers.items()}
        upstream.asked.append((self.command, self.path, headers, self.read()))
        upstream.has_come.set()
        if not upstream.pieces:
            upstream.go.wait(10)
        self.send_response(upstream.status)
        for name, value in upstream.headers.items():
            self.send_header(name, value)
        if upstream.pieces:
            self.send_pieces(upstream)
        else:
            self.send_header("content-length", str(len(upstream.body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else upstream.body)

    do_GET = do_POST = do_HEAD = answer  # noqa: N815 - the library's names

    def send_pieces(self, upstream):
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in upstream.pieces:
            upstream.go.wait(10)
            if piece is BREAK:
                self.close_connection = True
                return
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def read(self):
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def handle(self):
        with contextlib.suppress(ConnectionError):
            super().handle()
        self.server.upstream.has_left.set()

    def log_message(self, *args):
        pass
