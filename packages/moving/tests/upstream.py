"""A small server whose answers a test chooses, and holds back."""

import threading

from tests.http_server import StandIn

BREAK = b"(the connection breaks)"
JSON = {"content-type": "application/json"}


class Upstream(StandIn):
    """Answers every request alike, once `go` is set.

    With `pieces`, the answer comes in pieces, and each of them waits for `go`.
    """

    def __init__(self, body=b'{"label": "cat", "score": 0.5}', *, status=200, headers=None):
        super().__init__(self._answer)
        self.body, self.status, self.headers = body, status, headers or JSON
        self.pieces = ()
        self.has_come, self.go = threading.Event(), threading.Event()
        self.go.set()

    def _answer(self, _method, _path, _body):
        self.has_come.set()
        if self.pieces:
            return self.status, self.headers, self._held_pieces()
        self.go.wait(10)
        return self.status, self.headers, self.body

    def _held_pieces(self):
        for piece in self.pieces:
            self.go.wait(10)
            if piece is BREAK:
                raise ConnectionAbortedError
            yield piece
