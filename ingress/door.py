"""What both granian applications add to an answer: whose server this is, and whether it closes."""

from collections.abc import Mapping

from ingress.rsgi import HttpScope

_FIRST_ERROR_STATUS = 400

# granian writes its own name where no `server` header is given; the version stays unsaid.
_SERVER = ("server", "torchferry")
_CLOSE = [("connection", "close"), _SERVER]
_KEEP_ALIVE = [("connection", "keep-alive"), _SERVER]
_UNSAID = [_SERVER]


def connection_headers(
    scope: HttpScope, headers: Mapping[str, str], status: int
) -> list[tuple[str, str]]:
    """The headers that only the door knows. The list is shared: copy, never change it.

    Source: TorchServe 0.12: errors close the connection, everything else keeps it (contract 0.3).
    """
    if status >= _FIRST_ERROR_STATUS or "transfer-encoding" in headers:
        # granian drops a Content-Length beside the chunks before we can see it. A proxy that went
        # by the length would take the rest of that body for the next request: there is none.
        # Source: RFC 9112, 6.1.
        return _CLOSE
    # Where the client wants to close, or speaks HTTP/1.0, granian says what is true.
    wish = headers.get("connection")
    if (wish is None or wish.lower() == "keep-alive") and scope.http_version == "1.1":
        return _KEEP_ALIVE
    return _UNSAID
