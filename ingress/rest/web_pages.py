"""Keeps web pages from changing what only operators may."""

from flask import request

from batching.errors import ServeError

_HARMLESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class CrossOrigin(ServeError):
    """Refuses a web page that would change models or files."""

    status = 403
    type = "IllegalArgumentException"
    reason = "cross_origin"


def refuse_web_pages(allowed_origin: str) -> None:
    """Checks that the request is not a web page's that changes something.

    Raises:
        CrossOrigin: it is.
    """
    # Loopback needs no token, but any page in a browser on this machine can post to it (and, with
    # a name that resolves to 127.0.0.1, look like this server's own). Registering a model runs its
    # code. Browsers send `Origin`; curl, SDKs and our own commands do not. An origin that the
    # operator allows by name is trusted; `*` names no page.
    origin = request.headers.get("Origin")
    is_known = origin is None or origin == allowed_origin
    if request.method not in _HARMLESS_METHODS and not is_known:
        raise CrossOrigin("Web pages may not change models or files.")
