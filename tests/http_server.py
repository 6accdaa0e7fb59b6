"""Runs stand-in HTTP servers for the length of a with block."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

POLL_S = 0.01  # the default makes `shutdown` wait for half a second

# Status, headers and body; None: the connection ends without an answer.
GivenAnswer = tuple[int, Mapping[str, str], bytes] | None


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

    Keeps in `asked` what came: method, path, headers with names in lower case, and body.
    """

    def __init__(self, answer: Callable[[str, str, bytes], GivenAnswer]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def respond(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.asked.append((self.command, self.path, headers, body))
                given = outer.answer(self.command, self.path, body)
                if given is None:
                    self.close_connection = True
                    return
                status, headers_out, content = given
                self.send_response(status)
                for name, value in {**headers_out, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = respond  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.block_on_close = False
        self.url = f"http://127.0.0.1:{self.http.server_port}"
