"""Runs a stand-in HTTP server for the length of a with block."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import HTTPServer

POLL_S = 0.01  # the default makes `shutdown` wait for half a second


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
