"""Translates between Flask and the functions that both HTTP doors share."""

import contextlib
from concurrent.futures import Future
from types import SimpleNamespace

from flask import Response, request

from ingress.http1.exchange import Answer, Body, Exchange, Header
from ingress.predictions.prediction import StreamedAnswer


class PlainResponse(Response):
    """Leaves the content type to the answer's headers."""

    default_mimetype = None


class AwaitedExchange(Exchange):
    """A request whose thread waits until it is answered: under a WSGI server."""

    def __init__(
        self,
        fields: dict[str, str],
        *,
        method: str = "POST",
        path: str = "",
        query: str = "",
        client: str = "",
        scheme: str = "http",
    ) -> None:
        super().__init__(
            SimpleNamespace(client=client, scheme=scheme),
            method=method,
            path=path,
            query=query,
            http_version="1.1",
            headers=list(fields.items()),
            fields=fields,
            keeps_alive=False,
        )
        self.answered: Future[Answer | StreamedAnswer] = Future()

    def respond(self, status: int, headers: list[Header], body: Body) -> None:  # type: ignore[override]
        self.take(Answer(status, headers, body))

    def take(self, answer: Answer | StreamedAnswer) -> None:
        """Answers the request, unless it has an answer."""
        if not self.answered.done():
            self.answered.set_result(answer)


def flask_exchange() -> AwaitedExchange:
    """Returns this thread's request; of a header that came twice, WSGI has joined the values."""
    fields = {}
    for name, value in request.headers.items():
        with contextlib.suppress(UnicodeDecodeError):
            fields[name.lower()] = value.encode("latin-1").decode()
    return AwaitedExchange(
        fields,
        method=request.method,
        path=request.path,
        query=request.query_string.decode("utf-8", "replace"),
        client=f"{request.environ.get('REMOTE_ADDR', '')}:0",
        scheme=request.scheme,
    )
