"""Translates between Flask and the functions that both HTTP doors share."""

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from flask import Response, request

from ingress.http1.exchange import Answer
from ingress.predictions.streamed_answer import Pieces
from ingress.services import Services


class PlainResponse(Response):
    """Leaves the content type to the answer's headers."""

    default_mimetype = None


def to_response(answer: Answer) -> Response:
    """Returns the answer, byte for byte."""
    return PlainResponse(bytes(answer.body), status=answer.status, headers=answer.headers)


def stream_response(
    answer: Pieces, on_loop: Callable[[Coroutine[Any, Any, bytes | None]], bytes | None]
) -> Response:
    """Sends the answer in pieces. An exception ends it and closes the connection.

    Args:
        answer: closed when the response is.
        on_loop: runs a coroutine on the answer's event loop.
    """

    async def next_piece() -> bytes | None:
        return await anext(answer, None)

    def pieces() -> Iterator[bytes]:
        while (piece := on_loop(next_piece())) is not None:
            yield piece

    response = PlainResponse(pieces(), status=answer.status, headers=answer.headers)
    response.call_on_close(lambda: on_loop(answer.close()))
    return response


def answer_job(services: Services) -> Answer:
    """Returns the answer to a request about one job."""
    asked = request.method, request.path, lower_case_headers(), base_url(services)
    return services.on_loop(services.jobs.answer(*asked))


def base_url(services: Services) -> str:
    """Returns the URL of this server as the client sees it, without a slash at the end."""
    peer = request.environ.get("REMOTE_ADDR", "")
    headers, proxies = lower_case_headers(), services.http_predictions.proxies
    return proxies.base_url(headers, scheme=request.scheme, peer=peer)


def lower_case_headers() -> dict[str, str]:
    """Returns the headers as the router sees them, but with duplicates joined, as in WSGI."""
    headers = {}
    for name, value in request.headers.items():
        with contextlib.suppress(UnicodeDecodeError):
            headers[name.lower()] = value.encode("latin-1").decode()
    return headers
