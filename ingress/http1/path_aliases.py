"""Serves an application's paths under further ones."""

from collections.abc import Coroutine, Mapping
from typing import Any

from ingress.http1.exchange import Application, Exchange


def with_aliases(app: Application, aliases: Mapping[str, str]) -> Application:
    """Returns the application, which takes each path in `aliases` for the one that it stands for.

    Args:
        app: answers.
        aliases: paths, without a slash at the end, and what they stand for.
    """

    def answer(exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        exchange.path = aliases.get(exchange.path.rstrip("/"), exchange.path)
        return app(exchange)

    return answer
