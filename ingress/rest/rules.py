"""Makes Flask's rules of the rows of the table of routes."""

import re
from collections.abc import Iterable

from flask import Blueprint, Flask

from ingress.torchserve.route import ANY, Route

ANY_METHOD = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD")


def add_routes(app: Flask | Blueprint, view: object, routes: Iterable[Route]) -> None:
    """Makes the method of `view` that a row names answer that row's requests.

    Raises:
        LookupError: the view has no method of that name.
    """
    for route in routes:
        name = f"{route.method} {route.path}"
        if not hasattr(view, route.view):
            raise LookupError(f"{name}: {type(view).__name__} has no method {route.view}")
        methods = ANY_METHOD if route.method == ANY else (route.method,)
        endpoint = name.replace(".", "_")  # Flask keeps dots for itself
        app.add_url_rule(_rule(route.path), endpoint, getattr(view, route.view), methods=methods)


def _rule(path: str) -> str:
    return re.sub(r"{(\w+)}", r"<\1>", path.replace("{tail}", "<path:tail>"))
